/* SPDX-License-Identifier: Apache-2.0
 *
 * One run under the seam: the product's own iso_train, from config to report, over a model that takes a fraction of a
 * millisecond a step. What it should give is known from runs without a log that were stopped behind each step.
 *
 * Of a run of two ranks this process is rank 0, which alone has the run folder and writes the log, from memory that the
 * other one writes to as well. The other one is a child.
 */
#include "chaos/crash.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const scenario scenarios[] = {
    {.name = "disk", .disk = true, .several = true},
    {.name = "process, packed", .packed = true, .several = true},
    {.name = "disk, stopped and resumed", .disk = true, .stop_at = 7},
    {.name = "disk, packed, every 8th snapshot kept", .disk = true, .packed = true, .several = true, .keep_every = 8},
    {.name = "disk, log suspended for a while",
     .disk = true,
     .several = true,
     .gap = true,
     .log_us = 100,
     .snapshot_us = 2000},
    {.name = "process, log suspended for a while", .gap = true, .stop_at = 13},
    {.name = "disk, gone back to step 13", .disk = true, .several = true, .stop_at = 15, .back_to = 13},
    {.name = "disk, storage too slow for a while", .disk = true, .several = true, .slow = true},
    {.name = "process, a mirror behind it", .several = true, .second = "mirror", .log_us = 6000},
    {.name = "disk, packed, a mirror behind it, resumed",
     .disk = true,
     .packed = true,
     .second = "mirror",
     .stop_at = 9,
     .log_us = 6000},
    {.name = "its state in a target", .several = true, .second = "target", .log_us = 1500},
    {.name = "disk, two ranks", .disk = true, .several = true, .ranks = 2},
    {.name = "process, two ranks, of which one is lost", .packed = true, .ranks = 2, .loses_rank = true},
};
const int scenario_count = (int)ISO_COUNT(scenarios);

enum { CORPUS_BYTES = 6000, SEGMENT_BYTES = 100000, SNAPSHOT_EVERY = 4 };
static iso_config config;
static char digests[2][STEPS + 1][65]; /* of one process, and of two virtual workers */
static const double TOO_LONG_S = 0.1;  /* log.max_wait_s where storage is to be too slow */

static const char yaml[] =
    "steps: %d\nseed: 3\nthreads: 1\n"
    "model:\n  config: {architectures: [LlamaForCausalLM], vocab_size: 512, hidden_size: 16,\n"
    "    intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2,\n"
    "    num_key_value_heads: 1, max_position_embeddings: 32, tie_word_embeddings: true,\n"
    "    rms_norm_eps: 1.0e-5, rope_theta: 10000, initializer_range: 0.05, bos_token_id: null}\n"
    "tokenizer: {path: %s/examples/tiny/tokenizer}\n"
    "data: {sources: [{path: %s/corpus.txt, separator: \"\\n\\n\"}], sequence: 15, slots: 2, threads: 1}\n"
    "batch: {sequences: 2}\n"
    "optimizer: {lr: 1e-2, warmup_steps: 2, clip_norm: 0.5}\n"
    "fusion: off\n";

/* One start. */
typedef struct start {
  const scenario *s;
  bool bare;                /* nothing is saved but the end */
  int64_t stop_at, back_to; /* back_to: it goes back to that step; 0: it does not */
  bool accept;              /* gives up what cannot be had */
  int ranks;
  int64_t doom; /* rank 1 is killed with that write of the log; -1: it is not */
} start;

static void second_path(const char *root, char path[300]) {
  snprintf(path, 300, "%s" SECOND_SUFFIX, root);
}

/* In a new process. */
static int be_rank_1(const iso_config *own, const iso_ranks_plan *plan, int fd) {
  iso_ranks *ranks;
  seam_remove();
  alarm(0);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (iso_ranks_open(plan, fd, 1, &ranks) != ISO_OK) return 1;
  return iso_ranks_leave(ranks, iso_follow(own, ranks)) == ISO_OK ? 0 : 1;
}

static iso_status train_ranks(const start *how, const iso_config *own, iso_train_options *options,
                              iso_train_result *result) {
  iso_ranks_plan plan;
  iso_ranks *ranks = NULL;
  int fd;
  ISO_TRY(iso_ranks_plan_make(own, how->ranks, "crash", &plan));
  ISO_TRY(iso_ranks_create_memory(&plan, &fd));
  (void)fflush(NULL);
  const pid_t other = fork();
  if (other == 0) _exit(be_rank_1(own, &plan, fd));
  iso_status status = other > 0 ? iso_ranks_open(&plan, fd, 0, &ranks) : iso_fail(ISO_ERR_IO, "cannot fork");
  close(fd);
  options->ranks = ranks;
  if (how->doom >= 0) seam_doom(other, how->doom);
  if (status == ISO_OK) status = iso_ranks_leave(ranks, iso_train(own, options, result));
  seam_doom(0, 0);
  iso_ranks_close(&ranks);
  if (other > 0 && status != ISO_OK) (void)kill(other, SIGKILL);
  if (other > 0) (void)waitpid(other, NULL, 0);
  return status;
}

static iso_status train(const char *root, const start *how) {
  const scenario *s = how->s;
  char second[300];
  iso_config own = config;
  iso_train_result result = {0};
  iso_train_options options = {.quiet = true,
                               .segment_bytes = SEGMENT_BYTES,
                               .go_back = how->back_to > 0,
                               .from_step = how->back_to,
                               .accept = how->accept};
  second_path(root, second);
  own.run = root;
  own.stop_at = how->stop_at;
  own.checkpoint.snapshot_every = how->bare ? 0 : SNAPSHOT_EVERY;
  own.log.enabled = !how->bare;
  own.checkpoint.keep_every = s->keep_every;
  own.log.io = s->several ? "uring" : "thread";
  own.log.compress = s->packed ? "on" : "off";
  own.log.durability = s->disk ? "disk" : "process";
  if (s->slow) own.log.max_wait_s = TOO_LONG_S;
  if (s->second && strcmp(s->second, "mirror") == 0) own.checkpoint.mirror = second;
  if (s->second && strcmp(s->second, "target") == 0) own.checkpoint.target = second;
  if (s->ranks) own.parallel.virtual_workers = 2;
  iso_status status = how->ranks ? train_ranks(how, &own, &options, &result) : iso_train(&own, &options, &result);
  if (status == ISO_OK && result.step != (how->stop_at ? how->stop_at : STEPS) && result.step != 0)
    status = iso_fail(ISO_ERR_INTERNAL, "the run ended behind step %lld", (long long)result.step);
  return status;
}

/* The next start is of one rank now and then. */
static start next_start(const scenario *s, const disk *d) {
  return (start){.s = s, .ranks = d->count % 3 ? s->ranks : 0, .doom = -1};
}

static const char *right_digest(const scenario *s, int64_t step) {
  return digests[s->ranks > 0][step];
}

/* Step and digest of the newest state that the folder leads to. */
static iso_status read_state(const char *root, int64_t *step, char digest[65]) {
  iso_stored stored;
  ISO_TRY(iso_stored_open(root, -1, &stored));
  *step = stored.info.step;
  iso_state_digest(&stored.state, *step, digest);
  iso_stored_close(&stored);
  return ISO_OK;
}

static bool write_inputs(const char *scratch, char path[512]) {
  char *text, corpus[512];
  size_t bytes;
  iso_string lines = {0};
  if (iso_file_read(ISO_ROOT "/examples/tiny/plays.txt", &text, &bytes) != ISO_OK) return false;
  snprintf(corpus, sizeof corpus, "%s/corpus.txt", scratch);
  snprintf(path, 512, "%s/run.yaml", scratch);
  iso_string_printf(&lines, yaml, STEPS, ISO_ROOT, scratch);
  const bool done = iso_file_replace(corpus, text, bytes < CORPUS_BYTES ? bytes : CORPUS_BYTES) == ISO_OK &&
                    iso_file_replace(path, lines.data, lines.length) == ISO_OK;
  iso_string_fini(&lines);
  free(text);
  return done;
}

static bool find_digests(const char *scratch, const scenario *s) {
  char root[512], digest[65];
  int64_t step = 0;
  start how = {.s = s, .bare = true, .doom = -1};
  char(*known)[65] = digests[s->ranks > 0];
  snprintf(root, sizeof root, "%s/steps-%d", scratch, s->ranks);
  for (how.stop_at = 1; how.stop_at <= STEPS; how.stop_at++)
    if (train(root, &how) != ISO_OK || read_state(root, &step, known[how.stop_at]) != ISO_OK || step != how.stop_at)
      return false;
  how.stop_at = 0;
  snprintf(root, sizeof root, "%s/whole-%d", scratch, s->ranks);
  if (train(root, &how) != ISO_OK || read_state(root, &step, digest) != ISO_OK) return false;
  return step == STEPS && strcmp(digest, known[STEPS]) == 0;
}

bool trial_prepare(const char *scratch, const scenario *only) {
  static const scenario alone = {.name = "without a log"}, ranks = {.name = "ranks without a log", .ranks = 2};
  char path[512];
  if (!write_inputs(scratch, path) || iso_config_read(path, NULL, 0, &config) != ISO_OK) return false;
  return ((only && only->ranks) || find_digests(scratch, &alone)) &&
         ((only && !only->ranks) || find_digests(scratch, &ranks));
}

/* What storage does to a first start. */
static fault_plan trouble(const scenario *s, dice *random) {
  fault_plan plan = {.under = "log/", .writes_only = true, .error = ENOSPC};
  plan.kind = s->gap ? FAULT_FAIL : s->slow ? FAULT_SLOW : FAULT_NONE;
  plan.at = 10 + dice_below(random, 60);
  plan.count = s->gap ? 4 + dice_below(random, 10) : 1 + dice_below(random, 2);
  return plan;
}

/* Step and digest of the end stand in both places. */
static bool is_at_end(const scenario *s, const disk *d) {
  char digest[65] = "", second[300];
  int64_t step = 0;
  if (read_state(d->root, &step, digest) != ISO_OK || step != STEPS || strcmp(digest, right_digest(s, STEPS)) != 0)
    return false;
  second_path(d->root, second);
  if (!s->second) return true;
  return read_state(second, &step, digest) == ISO_OK && step == STEPS && strcmp(digest, right_digest(s, STEPS)) == 0;
}

static bool first_once(const scenario *s, disk *d, dice *random, bool *missed) {
  fault_plan plan = trouble(s, random);
  start how = {.s = s, .ranks = s->ranks, .stop_at = s->stop_at, .doom = -1};
  if (s->loses_rank) how.doom = 4 + dice_below(random, 30);
  if (s->second) disk_add_second(d, strcmp(s->second, "target") == 0);
  seam_install(d, plan.kind ? &plan : NULL);
  seam_pace(s->log_us ? s->log_us : 300, s->snapshot_us);
  d->starts++;
  iso_status status = train(d->root, &how);
  if (s->loses_rank) status = status == ISO_OK ? iso_fail(ISO_ERR_INTERNAL, "a rank was killed in vain") : ISO_OK;
  if (status == ISO_OK && (s->stop_at || s->loses_rank)) {
    d->starts++;
    d->recovering = true;
    d->goes_back = s->back_to > 0;
    how = (start){.s = s, .ranks = s->ranks, .back_to = s->back_to, .doom = -1};
    status = train(d->root, &how);
  }
  seam_remove();
  const bool good = status == ISO_OK && is_at_end(s, d);
  if (!good)
    fprintf(stderr, "crash: a run without a crash (%s) did not come to its end: %s\n", s->name, iso_last_error());
  *missed = good && plan.kind && !plan.met;
  if (*missed) {
    fprintf(stderr, "crash: a run without a crash (%s) met nothing of what storage was to do\n", s->name);
    return false;
  }
  if (good && !disk_is_complete(d)) {
    fprintf(stderr, "crash: the run's folder is not what the seam saw\n");
    return false;
  }
  return good;
}

bool trial_first(const scenario *s, disk *d, dice *random) {
  bool missed, good = first_once(s, d, random, &missed);
  for (int more = 4; !good && missed && more > 0; more--) { /* what takes a while may come too late when it is busy */
    char root[sizeof d->root];
    memcpy(root, d->root, sizeof root);
    disk_fini(d);
    disk_init(d, root);
    good = first_once(s, d, random, &missed);
  }
  return good;
}

static void blame(bool *flag, verdict *out, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void blame(bool *flag, verdict *out, const char *format, ...) {
  va_list arguments;
  if (out->lost || out->wrong) return;
  *flag = true;
  va_start(arguments, format);
  vsnprintf(out->text, sizeof out->text, format, arguments);
  va_end(arguments);
}

/* What a crash leaves of the small files may be half written, but never looks damaged. */
static void check_small_files(const disk *d, verdict *out) {
  char *lines = NULL;
  size_t length;
  iso_string unprotected = {0}, torn = {0};
  FILE *to = open_memstream(&lines, &length);
  const iso_status status = to ? iso_run_small_files_verify(d->root, to, &unprotected, &torn) : ISO_ERR_MEMORY;
  if (to) fclose(to);
  if (status != ISO_OK) blame(&out->wrong, out, "%.150s", lines && *lines ? lines : iso_last_error());
  if (unprotected.length) blame(&out->wrong, out, "has no CRC: %.100s", unprotected.data);
  iso_string_fini(&unprotected);
  iso_string_fini(&torn);
  free(lines);
}

/* The state that a folder leads to, as `isotach digest RUN` reads it: changes nothing. It is as new as that. */
static void check_state(const scenario *s, const disk *d, const char *root, int64_t acked, verdict *out) {
  char digest[65];
  const int before = d->count;
  const char *where = strcmp(root, d->root) == 0 ? "" : " in the second place";
  out->recovered = 0;
  if (read_state(root, &out->recovered, digest) != ISO_OK) {
    out->recovered = 0;
    if (acked > 0)
      blame(&out->lost, out, "step %lld was durable%s, nothing can be read: %s", (long long)acked, where,
            iso_last_error());
    return;
  }
  if (out->recovered < acked)
    blame(&out->lost, out, "step %lld was durable%s, %lld is read", (long long)acked, where, (long long)out->recovered);
  if (out->recovered > STEPS || (out->recovered > 0 && strcmp(digest, right_digest(s, out->recovered)) != 0))
    blame(&out->wrong, out, "what is read behind step %lld%s is not the state there", (long long)out->recovered, where);
  if (d->count != before) blame(&out->wrong, out, "reading changed the folder");
}

/* A file was moved aside, and what is to take its place has not got its name yet: only a start does that. */
static bool is_replacing(const disk *d) {
  for (int i = 0; i < d->entry_count; i++)
    if (iso_run_replace_is_ready(d->entries[i].name)) return true;
  return false;
}

static void check_stored(const scenario *s, const disk *d, const duty *to, verdict *out) {
  char second[300];
  second_path(d->root, second);
  if (s->second) check_state(s, d, second, to->second, out);
  out->recovered = 0;
  if (d->restoring || is_replacing(d)) return; /* a start brings it back first, or to an end */
  check_small_files(d, out);
  check_state(s, d, d->root, to->here, out);
  out->here = out->recovered;
}

int64_t trial_newest(const disk *d) {
  char digest[65];
  int64_t step = 0;
  return read_state(d->root, &step, digest) == ISO_OK ? step : 0;
}

/* What the start itself said that it went on from: the first status.json of its own. */
static int64_t began_behind(const disk *d, int from) {
  for (int i = from; i < d->count; i++) {
    const op *o = &d->ops[i];
    const bool own = o->kind == OP_WRITE && o->data && o->at != AT_SECOND && o->at != AT_RESTORE;
    const char *at = own ? strstr(o->data, "\"verdict\": \"running\"") : NULL;
    const char *step = at ? strstr(at, "\"step\": ") : NULL;
    if (step) return strtoll(step + 8, NULL, 10);
  }
  return -1;
}

void trial_recover(const scenario *s, disk *d, const duty *to, verdict *out) {
  *out = (verdict){0};
  const int from = d->count;
  const int64_t acked = to->acked;
  start how = next_start(s, d);
  d->starts++;
  seam_install(d, NULL);
  check_stored(s, d, to, out);
  iso_status status = train(d->root, &how);
  /* The newest snapshot damaged, and the log that led as far, which was durable against kills only, gone with the
   * power: that is a loss by damage, which a start refuses until the user gives the steps up. */
  how.accept = to->may_give_up || (d->harmed && !s->disk && acked == 0);
  char refused[256] = "";
  if (status == ISO_ERR_FORMAT && how.accept) {
    snprintf(refused, sizeof refused, " (it had refused: %.200s)", iso_last_error());
    status = train(d->root, &how);
  }
  seam_remove();
  if (status == ISO_STOPPED) _exit(4); /* somebody has signalled this process: that is no verdict */
  const int64_t behind = began_behind(d, from);
  if (status != ISO_OK)
    blame(&out->lost, out, "step %lld was durable, the start fails: %s", (long long)acked, iso_last_error());
  else if (behind >= 0 && behind < acked)
    blame(&out->lost, out, "step %lld was durable, the start goes on behind %lld%s", (long long)acked,
          (long long)behind, refused);
  else if (!is_at_end(s, d))
    blame(&out->wrong, out, "it went on behind step %lld, and the end is not there, or not right: %s",
          (long long)behind, iso_last_error());
  if (status == ISO_OK) check_small_files(d, out);
  if (behind > out->recovered) out->recovered = behind;
}

void trial_look(const scenario *s, disk *d, int64_t acked, verdict *out) {
  const duty to = {.acked = acked, .here = acked};
  *out = (verdict){0};
  seam_install(d, NULL);
  check_stored(s, d, &to, out);
  seam_remove();
}

bool trial_fault(const scenario *s, disk *d, fault_plan *plan) {
  const start how = next_start(s, d);
  d->starts++;
  seam_install(d, plan);
  const iso_status status = train(d->root, &how);
  seam_remove();
  return status == ISO_OK; /* whatever it is, the folder must lead on */
}
