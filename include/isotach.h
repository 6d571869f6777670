/* SPDX-License-Identifier: Apache-2.0
 *
 * Isotach's public C interface: train a run from its config, generate with a trained model. Compiles alone, as C99 and
 * later and as C++.
 *
 *   isotach_config *config;
 *   if (isotach_config_open("run.yaml", NULL, 0, &config) == ISOTACH_OK) {
 *     isotach_train(config, 0, NULL);
 *     isotach_config_close(&config);
 *   }
 *
 * Conventions
 *  1. Handles are opaque. _open hands one out on success only; _close takes the handle's address, sets it to NULL, and
 *     accepts NULL.
 *  2. Pointers passed in are borrowed for the call. Text is UTF-8 and ends in NUL.
 *  3. Every failure logs one line on standard error (isotach_log_quiet turns that off) and keeps it for
 *     isotach_last_error().
 *  4. Different handles may be used by different threads at once; one handle only by one thread at a time.
 */
#ifndef ISOTACH_H
#define ISOTACH_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ISOTACH_API __attribute__((visibility("default")))
#else
#define ISOTACH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ISOTACH_VERSION "0.1.0"

/* Of the library that runs; differs from ISOTACH_VERSION when another one was linked. */
ISOTACH_API const char *isotach_version(void);

/* ---- statuses: 0 is success; families by what is lost (the call, the object, the run) -------------- */

typedef enum isotach_status {
  ISOTACH_OK = 0,
  ISOTACH_ERR_USAGE = 10,       /* the call is wrong */
  ISOTACH_ERR_CONFIG = 11,      /* the run config is wrong */
  ISOTACH_ERR_UNSUPPORTED = 12, /* valid, but this build does not do it */
  ISOTACH_ERR_NOT_FOUND = 20,   /* no such file or folder */
  ISOTACH_ERR_IO = 21,          /* the operating system refused */
  ISOTACH_ERR_FORMAT = 22,      /* a file is corrupt or malformed */
  ISOTACH_ERR_MISMATCH = 23,    /* two things that must agree do not */
  ISOTACH_ERR_BUSY = 24,        /* in use by another process */
  ISOTACH_ERR_MEMORY = 30,      /* too little memory */
  ISOTACH_ERR_SPACE = 31,       /* too little disk */
  ISOTACH_ERR_CHECK = 32,       /* a verification found a difference */
  ISOTACH_ERR_NUMERIC = 33,     /* too many non-finite steps */
  ISOTACH_STOPPED = 34,         /* stopped early by a signal; the same call goes on */
  ISOTACH_ERR_INTERNAL = 40     /* a broken invariant of the library */
} isotach_status;

/* Stable lower-case name, e.g. "not_found". */
ISOTACH_API const char *isotach_status_name(isotach_status status);
/* What the command line's process exits with. */
ISOTACH_API int isotach_exit_code(isotach_status status);
/* The line of this thread's last failure; "" if none. Valid until the next one. */
ISOTACH_API const char *isotach_last_error(void);
/* 0: lines go to standard error (the default). Not 0: they are only kept. For the whole process. */
ISOTACH_API void isotach_log_quiet(int quiet);

/* ---- training ----------------------------------------------------------------------------------- */

typedef struct isotach_config isotach_config;

/* Reads a run config (see `isotach help config`) with "key=value" overrides, `count` of them. */
ISOTACH_API isotach_status isotach_config_open(const char *path, const char *const *overrides, size_t count,
                                               isotach_config **out);
ISOTACH_API void isotach_config_close(isotach_config **config);

enum {
  ISOTACH_TRAIN_ACCEPT = 1,    /* resume although settings that decide bits have changed */
  ISOTACH_TRAIN_TAKE_OVER = 2, /* take over the lock of a process on another host that is gone */
  ISOTACH_TRAIN_QUIET = 4      /* no progress on standard output */
};

typedef struct isotach_train_result {
  int64_t step;       /* reached; 0: the run was complete already, and nothing was done */
  int64_t parameters; /* of the model */
  int64_t tokens;     /* trained on so far */
  int64_t refused;    /* steps that were not finite */
  double loss;        /* of the last step, nats per token */
  double seconds, tokens_per_s, mfu;
  double bits_per_byte; /* of the held-out text; negative: there is none, or the run has not ended */
} isotach_train_result;

/* Trains the config's run, or resumes it, until its end, `stop_at`, SIGTERM or SIGINT (ISOTACH_STOPPED); handlers of
 * the two signals are replaced for the call. flags: ISOTACH_TRAIN_*, or'ed. `result` may be NULL. */
ISOTACH_API isotach_status isotach_train(const isotach_config *config, unsigned flags, isotach_train_result *result);

/* ---- generation --------------------------------------------------------------------------------- */

typedef struct isotach_model isotach_model;

/* `path`: a Hugging Face folder, a run's folder, or RUN@STEP. threads 0: all cores of this process. */
ISOTACH_API isotach_status isotach_model_open(const char *path, int threads, isotach_model **out);
ISOTACH_API void isotach_model_close(isotach_model **model);
ISOTACH_API int64_t isotach_model_parameters(const isotach_model *model);
ISOTACH_API int64_t isotach_model_vocabulary(const isotach_model *model);

typedef struct isotach_sampling {
  double temperature; /* 0: always the likeliest token */
  double top_p;       /* among the likeliest that together have this mass; 1: off */
  int64_t top_k;      /* among the K likeliest; 0: off */
  uint64_t seed;      /* the same seed gives the same text, on any number of threads */
  int64_t max_tokens;
} isotach_sampling;

/* One new token and the bytes it stands for: not always whole characters. */
typedef void (*isotach_on_token)(void *context, int32_t token, const char *bytes, size_t length);

/* Continues `prompt` until end of text or max_tokens. */
ISOTACH_API isotach_status isotach_generate(const isotach_model *model, const char *prompt,
                                            const isotach_sampling *sampling, isotach_on_token on_token, void *context);

#ifdef __cplusplus
}
#endif

#endif
