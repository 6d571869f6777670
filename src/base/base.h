/* SPDX-License-Identifier: Apache-2.0
 *
 * base: what every folder stands on. Nothing here knows about models or training.
 *
 * Invariants
 *  1. The first function that knows the cause of a failure logs it, in one line, with iso_fail();
 *     callers only forward the status (ISO_TRY).
 *  2. Nothing in base calls exit() or abort() for an operating error.
 *  3. All calls that read or change stored data go through the table `iso_os`, so tests can fail any of them.
 *  4. Random numbers are pure functions of (seed, purpose, step, element): there is no generator state.
 *  5. The double-precision functions of math.c use only +, -, *, / and sqrt, in a fixed order: their bits do
 *     not depend on the C library.
 */
#ifndef ISO_BASE_H
#define ISO_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define ISO_MUST_CHECK        __attribute__((warn_unused_result))
#define ISO_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ISO_COUNT(array)      (sizeof(array) / sizeof((array)[0]))

/* ---- status.c: error families, by what is lost -------------------------------------------------- */

typedef enum iso_status {
  ISO_OK = 0,
  /* the call: the caller asked for something wrong                    exit code 2 */
  ISO_ERR_USAGE = 10,       /* command line */
  ISO_ERR_CONFIG = 11,      /* run config: unknown key, wrong type, impossible combination */
  ISO_ERR_UNSUPPORTED = 12, /* valid, but this build does not do it */
  /* the object: a file or folder is not what it should be */
  ISO_ERR_NOT_FOUND = 20, /* exit code 3 */
  ISO_ERR_IO = 21,        /* exit code 3: the operating system refused */
  ISO_ERR_FORMAT = 22,    /* exit code 4: corrupt or malformed */
  ISO_ERR_MISMATCH = 23,  /* exit code 5: two things that must agree do not (vocabulary, fingerprint, shapes) */
  ISO_ERR_BUSY = 24,      /* exit code 6: in use by another process */
  /* the run */
  ISO_ERR_MEMORY = 30,  /* exit code 7: too little memory */
  ISO_ERR_SPACE = 31,   /* exit code 7: too little disk */
  ISO_ERR_CHECK = 32,   /* exit code 1: a verification found a difference */
  ISO_ERR_NUMERIC = 33, /* exit code 8: too many non-finite steps */
  ISO_STOPPED = 34,     /* exit code 75: stopped early by a signal, resumable */
  ISO_ERR_INTERNAL = 40 /* exit code 70: a broken invariant of ours */
} iso_status;

/* Process exit code of a status (see the enum). */
int iso_exit_code(iso_status status);
/* Stable lower-case name, e.g. "not_found". */
const char *iso_status_name(iso_status status);

/* Logs one line "isotach: error: ..." to standard error, keeps it for iso_last_error(), returns `status`.
 * The message says: what, which object, exact cause, what to do. No trailing newline or period. */
iso_status iso_fail(iso_status status, const char *format, ...) ISO_PRINTF(2, 3);
/* Lets clang-tidy know that the result is the status given, so that it follows error paths. */
#ifdef __clang_analyzer__
static inline iso_status iso_fail_result(iso_status logged, iso_status status) {
  return status;
}
#define iso_fail(status, ...) iso_fail_result(iso_fail(status, __VA_ARGS__), status)
#endif
/* One line "isotach: warning: ..." to standard error. */
void iso_warn(const char *format, ...) ISO_PRINTF(1, 2);
/* One line "isotach: ..." to standard error (progress that is not a result). */
void iso_note(const char *format, ...) ISO_PRINTF(1, 2);
/* The message of this thread's last iso_fail(), without prefix; "" if none. Valid until the next one. */
const char *iso_last_error(void);
/* With quiet on, lines are kept for iso_last_error() but not printed. Process-wide. Returns what was before. */
bool iso_log_quiet(bool quiet);
/* The same for this thread alone: for one that meets the same failure again and again and says it once, in its own
 * words. Returns what was before, for whoever is called by one that is mute. */
bool iso_log_mute(bool muted);

/* Bytes of the valid UTF-8 sequence that `text` begins with, 1 to 4; 0 if there is none within `length` bytes. */
int iso_utf8_span(const char *text, size_t length);

#define ISO_TRY(expression)                                                                                            \
  do {                                                                                                                 \
    iso_status iso_try_status_ = (expression);                                                                         \
    if (iso_try_status_ != ISO_OK) return iso_try_status_;                                                             \
  } while (0)

/* ---- memory.c: heap and arenas ------------------------------------------------------------------ */

/* An arena: many allocations, one lifetime. Memory is zeroed, aligned to 16 bytes. Not thread-safe.
 * Allocation failure inside an arena ends in a NULL from iso_arena_alloc (small host objects only). */
typedef struct iso_arena iso_arena;
iso_arena *iso_arena_create(void);
void iso_arena_destroy(iso_arena **arena);
void *iso_arena_alloc(iso_arena *arena, size_t bytes);
char *iso_arena_strdup(iso_arena *arena, const char *text);
char *iso_arena_printf(iso_arena *arena, const char *format, ...) ISO_PRINTF(2, 3);

/* At least `bytes`, uninitialised, on huge pages where the system has them; for tables that are read at random. free()
 * frees it; NULL when there is no memory (logs nothing). */
void *iso_huge_alloc(size_t bytes);
/* Planned slabs: zeroed, aligned to 2 MiB, huge pages asked for with madvise. NULL with iso_fail() logged
 * when it cannot be had. `name` appears in the message. iso_slab_free accepts NULL. */
void *iso_slab_alloc(size_t bytes, const char *name);
void iso_slab_free(void *slab, size_t bytes);
/* Bytes of slabs now allocated in this process. */
size_t iso_slab_total(void);

/* A growing byte string. Zero-initialise; always NUL-terminated once used. When memory runs out that is logged, and
 * the string is "" from then on, whatever is appended: check iso_string_failed() before the result is used. */
typedef struct iso_string {
  char *data;
  size_t length;
  size_t capacity;
} iso_string;
void iso_string_append(iso_string *string, const void *bytes, size_t length);
void iso_string_printf(iso_string *string, const char *format, ...) ISO_PRINTF(2, 3);
/* What a terminal would obey becomes '?', in place; ends of lines and tabs stay. */
void iso_text_tame(char *text, size_t bytes);
/* What a noun behind that number ends in: "" behind 1, else "s". */
static inline const char *iso_plural(int64_t count) {
  return count == 1 ? "" : "s";
}
bool iso_string_failed(const iso_string *string);
void iso_string_fini(iso_string *string);

/* ---- os.c: the OS seam -------------------------------------------------------------------------- */

/* Every call behaves as its POSIX namesake (-1 and errno on failure). Tests replace entries. */
typedef struct iso_os_table {
  int (*open)(const char *path, int flags, int mode);
  int (*close)(int fd);
  ssize_t (*pread)(int fd, void *data, size_t bytes, int64_t offset);
  ssize_t (*pwrite)(int fd, const void *data, size_t bytes, int64_t offset);
  int (*fsync)(int fd);
  int (*fdatasync)(int fd);
  int (*ftruncate)(int fd, int64_t bytes);
  int (*rename)(const char *from, const char *to);           /* may replace */
  int (*rename_noreplace)(const char *from, const char *to); /* renameat2(RENAME_NOREPLACE), else link + unlink */
  int (*unlink)(const char *path);
  int (*mkdir)(const char *path, int mode);
  int (*rmdir)(const char *path);
  int (*stat)(const char *path, struct stat *out);
  /* Several writes in flight, NULL: io's own (uring.c), as long as pwrite is the real one. */
  void *(*writes_open)(int depth); /* NULL and errno: not here */
  /* The parts behind each other, from `offset`; they and the array stay as they are until it is reaped. */
  int (*writes_begin)(void *writes, int fd, const struct iovec *parts, int count, int64_t offset, int tag);
  int (*writes_reap)(void *writes, int *tag, ssize_t *result); /* waits for any; result: bytes, or minus errno */
  void (*writes_close)(void *writes);                          /* none may be in flight */
} iso_os_table;
extern iso_os_table iso_os;
/* Nothing stands between iso_os.pwrite and the C library's, be it in the table or preloaded. */
bool iso_os_writes_are_real(void);

/* Logs "cannot WHAT 'PATH': cause of errno" and returns its status: NOT_FOUND, SPACE, MEMORY or IO. */
iso_status iso_os_fail(const char *what, const char *path);
#ifdef __clang_analyzer__ /* as at iso_fail */
#define iso_os_fail(what, path) iso_fail_result(iso_os_fail(what, path), ISO_ERR_IO)
#endif

/* Whole-file helpers over the seam. The buffer of iso_file_read is malloc'd, NUL-terminated beyond `bytes`,
 * and belongs to the caller (free). Errors: NOT_FOUND, IO, MEMORY; logged with the path. */
iso_status iso_file_read(const char *path, char **data, size_t *bytes) ISO_MUST_CHECK;
/* Temporary file in the same folder, written, synced, renamed over `path`, folder synced. */
iso_status iso_file_replace(const char *path, const void *data, size_t bytes) ISO_MUST_CHECK;
/* Full-length positioned I/O: short transfers and EINTR are continued. Logged with `path`. A file that ends within the
 * bytes to read is a FORMAT error. */
iso_status iso_file_pread(int fd, const char *path, void *data, size_t bytes, int64_t offset) ISO_MUST_CHECK;
iso_status iso_file_pwrite(int fd, const char *path, const void *data, size_t bytes, int64_t offset) ISO_MUST_CHECK;
bool iso_path_exists(const char *path);
bool iso_path_is_folder(const char *path);
bool iso_path_is_dangling(const char *path); /* a symbolic link that leads nowhere */
bool iso_path_is_root(const char *path);     /* "/", by whatever name */
/* Creates the folder and its parents. */
iso_status iso_path_make(const char *path) ISO_MUST_CHECK;
/* fsync of a folder. */
iso_status iso_path_sync(const char *path) ISO_MUST_CHECK;
/* "a/b" in the arena; `b` alone when it is absolute or a is "". */
char *iso_path_join(iso_arena *arena, const char *a, const char *b);
/* Sorted (strcmp) names in a folder without "." and "..", in the arena. */
iso_status iso_path_list(iso_arena *arena, const char *path, char ***names, size_t *count) ISO_MUST_CHECK;

/* ---- thread.c: single threads, and waiting with an end --------------------------------------------- */

/* pthread_create with all signals blocked in the new thread. 0, or the error of pthread_create. */
int iso_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument) ISO_MUST_CHECK;
/* For iso_condition_wait. */
void iso_condition_init(pthread_cond_t *condition);
/* Waits for a change until iso_clock_s() is `until_s`; false: the time has come. */
bool iso_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double until_s);

/* ---- span.c: what threads beside the steps do, for a trace ------------------------------------------ */

typedef enum iso_stream_kind { ISO_STREAM_COMM, ISO_STREAM_LOG, ISO_STREAM_SNAPSHOT } iso_stream_kind;
enum { ISO_STREAMS = ISO_STREAM_SNAPSHOT + 1 };
typedef struct iso_busy_span {
  double began_s, ended_s; /* iso_clock_s */
  const char *name;        /* a constant */
  int64_t number, bytes;   /* of what: a step, a bucket; 0 bytes: none move */
} iso_busy_span;
/* On: from now on spans are kept. MEMORY. */
iso_status iso_spans_record(bool on) ISO_MUST_CHECK;
/* When a span begins; 0: nobody wants to know. */
double iso_span_begin(void);
/* It ends now. By the stream's one thread. */
void iso_span_end(iso_stream_kind stream, double began_s, const char *name, int64_t number, int64_t bytes);
/* How many there have been. */
int64_t iso_spans_count(iso_stream_kind stream);
/* Those from number `from` on, as many as there still are; free *out. */
int64_t iso_spans_copy(iso_stream_kind stream, int64_t from, iso_busy_span **out, int64_t *lost);

/* ---- order.c: sorted numbers ---------------------------------------------------------------------- */

void iso_sort(double *values, int64_t count); /* ascending */
/* The value of nearest rank, of sorted ones. count >= 1, percent 1 to 100. */
double iso_quantile(const double *sorted, int64_t count, int percent);

/* ---- machine.c: time, memory, disks -------------------------------------------------------------- */

/* Seconds of CLOCK_MONOTONIC. */
double iso_clock_s(void);
/* Bytes of memory this process may still take (cgroup limit and MemAvailable). */
int64_t iso_memory_available(void);
/* Resident set of this process now, and its peak, in bytes. */
int64_t iso_memory_resident(void);
int64_t iso_memory_resident_peak(void);
/* Free bytes on the file system of `path` (or of its nearest existing parent). -1 if unknown. */
int64_t iso_disk_free(const char *path);

/* ---- cpu.c: features and tiers ------------------------------------------------------------------ */

typedef enum iso_tier { ISO_TIER_SCALAR, ISO_TIER_AVX2, ISO_TIER_AVX512, ISO_TIER_AVX512BF16, ISO_TIER_COUNT } iso_tier;
/* Highest tier this machine runs (OS-enabled state checked with xgetbv). */
iso_tier iso_cpu_best_tier(void);
/* The tier to use: ISOTACH_CPU=scalar|avx2|avx512|avx512bf16 or the best one. CONFIG error when the name is
 * unknown or the machine cannot run it. */
iso_status iso_cpu_tier(iso_tier *tier) ISO_MUST_CHECK;
const char *iso_tier_name(iso_tier tier);
/* Cores this process may use (affinity mask), at least 1. */
int iso_cpu_count(void);
/* Those cores in the order to use them: one of each physical core first, then their siblings. Returns how many were
 * written, at most `capacity`; 0 when the kernel does not say. */
int iso_cpu_order(int *cpus, int capacity);
/* From now on this process uses its share of the processors that it may use, [0, parts): whole cores as far as
 * possible, neighbours together; one of them, which others have too, where there are fewer than parts. Returns how many
 * it keeps; 0: it could not be done, and nothing has changed. */
int iso_cpu_part(int part, int parts);

/* ---- team.c: a fixed team of threads with its own barrier ---------------------------------------- */

/* The caller of iso_team_run is thread 0; threads 1.. are created once, pinned when `pin` and when there are as
 * many cores as threads. Threads wait by spinning briefly, then sleep on a futex/condition variable. */
typedef struct iso_team iso_team;
iso_team *iso_team_create(int threads, bool pin);
void iso_team_destroy(iso_team **team);
int iso_team_size(const iso_team *team);
/* Runs function(argument, thread) on every thread; returns when all returned. */
void iso_team_run(iso_team *team, void (*function)(void *argument, int thread), void *argument);
/* Barrier for use inside iso_team_run, by all threads. Full memory ordering. No allocation. NULL team: no-op. */
void iso_team_barrier(iso_team *team);

/* ---- crc32c.c ----------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli, reflected, init and xorout ~0): crc32c(0, "123456789", 9) = 0xE3069283. Continues from
 * a previous value, 0 at the start. */
uint32_t iso_crc32c(uint32_t crc, const void *data, size_t bytes);
/* Of ab, from those of a and of b, which has `bytes`. */
uint32_t iso_crc32c_join(uint32_t first, uint32_t second, uint64_t bytes);

/* ---- sha256.c (nettle) --------------------------------------------------------------------------- */

typedef struct iso_sha256 iso_sha256;
iso_sha256 *iso_sha256_create(void);
void iso_sha256_update(iso_sha256 *hash, const void *data, size_t bytes);
/* 64 hex digits and a NUL; destroys the hash. */
void iso_sha256_finish(iso_sha256 **hash, char hex[65]);

/* ---- rng.c: counter-based random numbers (Philox4x32-10, Salmon et al. 2011) --------------------- */

typedef enum iso_rng_purpose {
  ISO_RNG_INIT = 1,    /* weights: step = tensor's index, element = element */
  ISO_RNG_SHUFFLE = 2, /* data order */
  ISO_RNG_MIXTURE = 3, /* which source a lane reads next */
  ISO_RNG_SAMPLE = 4,  /* generation */
  ISO_RNG_TEST = 5
} iso_rng_purpose;
/* Philox itself: 128 random bits from a counter under a key. */
void iso_philox(const uint32_t counter[4], uint64_t key, uint32_t out[4]);
/* 128 random bits for (seed, purpose, step, element); step below 2^56. */
void iso_rng(uint64_t seed, iso_rng_purpose purpose, uint64_t step, uint64_t element, uint32_t out[4]);
/* Uniform double in [0, 1) with 53 bits. */
double iso_rng_uniform(uint64_t seed, iso_rng_purpose purpose, uint64_t step, uint64_t element);
/* Standard normal (Box-Muller over math.c, so the bits are the same everywhere). */
double iso_rng_normal(uint64_t seed, iso_rng_purpose purpose, uint64_t step, uint64_t element);
/* normal.c: a standard normal number from 32 random bits; odd about the middle. */
double iso_normal_from_bits(uint32_t bits);
/* out[i - begin] = std * iso_normal_from_bits(word i mod 4 of iso_rng(seed, purpose, step, i / 4)) for i in [begin,
 * end), begin a multiple of 4, neither above 2^62; the bits are the same on every tier. */
void iso_rng_normals(iso_tier tier, uint64_t seed, iso_rng_purpose purpose, uint64_t step, int64_t begin, int64_t end,
                     double std, float *out);
/* A keyed bijection of [0, count) (Feistel network with cycle walking); count >= 1, index < count. */
uint64_t iso_rng_permute(uint64_t seed, uint64_t key, uint64_t count, uint64_t index);

/* ---- math.c: functions whose bits are ours ------------------------------------------------------- */

double iso_exp(double x);
double iso_log(double x);
double iso_sin(double x); /* |x| up to 2^30, else NaN */
double iso_cos(double x);
double iso_pow_int(double x, int64_t n); /* by squaring; n < 0: 1 / x^-n */
double iso_pow(double x, double y);      /* x >= 0, else NaN */

/* ---- dtype.c: element types ---------------------------------------------------------------------- */

typedef enum iso_dtype { ISO_F32, ISO_BF16, ISO_I32, ISO_F16, ISO_F64, ISO_I64, ISO_U8 } iso_dtype;
size_t iso_dtype_size(iso_dtype dtype);
const char *iso_dtype_name(iso_dtype dtype); /* "f32", "bf16", "i32", ... */
typedef uint16_t iso_bf16;
iso_bf16 iso_bf16_from_f32(float x); /* nearest even; NaN stays NaN (quiet); subnormals kept */
float iso_bf16_to_f32(iso_bf16 x);
float iso_f16_to_f32(uint16_t x);

/* ---- json.c: JSON (cJSON underneath) ------------------------------------------------------------- */

typedef struct cJSON iso_json;
/* Parses text strictly (RFC 8259; a leading byte order mark is skipped); duplicate keys in any object, trailing text,
 * NUL characters (raw or escaped) and depth above 64 are refused. `where` names the source in errors, which have line
 * and column. FORMAT. Destroy with iso_json_destroy. */
iso_status iso_json_parse(const char *text, size_t bytes, const char *where, iso_json **out) ISO_MUST_CHECK;
iso_status iso_json_read(const char *path, iso_json **out) ISO_MUST_CHECK;
void iso_json_destroy(iso_json **json);
/* Member or NULL (also for a JSON null). */
iso_json *iso_json_get(const iso_json *object, const char *key);
/* Typed members. When missing or null: the default. When of another type, not whole, or out of range (for integers
 * beyond 2^53, which JSON's doubles hold exactly): FORMAT error that names `where` and the key. */
iso_status iso_json_int(const iso_json *object, const char *where, const char *key, int64_t fallback,
                        int64_t *out) ISO_MUST_CHECK;
iso_status iso_json_double(const iso_json *object, const char *where, const char *key, double fallback,
                           double *out) ISO_MUST_CHECK;
iso_status iso_json_bool(const iso_json *object, const char *where, const char *key, bool fallback,
                         bool *out) ISO_MUST_CHECK;
iso_status iso_json_string(const iso_json *object, const char *where, const char *key, const char *fallback,
                           const char **out) ISO_MUST_CHECK;
/* Copies a member's text; "" where it is missing or no string. */
void iso_json_copy_text(const iso_json *object, const char *key, char *out, size_t capacity);
/* Appends `text` as a JSON string with quotes and escapes. */
void iso_json_quote(iso_string *out, const char *text, size_t length);
/* Appends `value` with so many significant digits; null where it is not finite, which JSON has no number for. */
void iso_json_number(iso_string *out, double value, int digits);
/* For printf, which writes "-nan" where the sign bit is set, as the processor's own NaN has it. */
static inline double iso_unsigned_nan(double value) {
  return value == value ? value : __builtin_nan("");
}

/* ---- yaml.c: YAML (libfyaml underneath) ----------------------------------------------------------- */

typedef enum iso_yaml_kind { ISO_YAML_SCALAR, ISO_YAML_SEQUENCE, ISO_YAML_MAPPING } iso_yaml_kind;
typedef struct iso_yaml {
  iso_yaml_kind kind;
  const char *text; /* scalar */
  bool quoted;      /* scalar was written in quotes: always a string */
  int line, column; /* from 1 */
  const char *key;  /* in a mapping: this member's key and where it stands */
  int key_line, key_column;
  struct iso_yaml **children;
  int count;
} iso_yaml;
/* Parses one document into the arena. Duplicate keys, aliases, several documents and depth above 32 are refused. An
 * empty document is an empty mapping. Errors: NOT_FOUND, IO, CONFIG with "path:line:column". */
iso_status iso_yaml_read(iso_arena *arena, const char *path, iso_yaml **out) ISO_MUST_CHECK;
iso_status iso_yaml_parse(iso_arena *arena, const char *text, size_t length, const char *where,
                          iso_yaml **out) ISO_MUST_CHECK;

/* ---- nearest.c: what a misspelt word may have meant ------------------------------------------------ */

/* Insertions, deletions and replacements from one word to the other; 128 when one is longer than 127 bytes. */
size_t iso_edit_distance(const char *a, const char *b);
/* The nearest of `names`, the first of equals; "" when there are none. */
const char *iso_nearest(const char *word, const char *const *names, size_t count);

#endif
