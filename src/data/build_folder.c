/* SPDX-License-Identifier: Apache-2.0
 *
 * build folder: whose folder it is that a build writes into.
 *
 * build.json says what a build was asked for, build.lock whose process writes. A folder is taken by one process, for
 * one plan, and only when nothing else stands in it; what earlier attempts left behind goes.
 *
 * Invariants
 *  1. Nothing that a build did not make is written over, renamed or removed.
 *  2. A file of a shard that has a record stays.
 */
#include "data/build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { PLAN_VERSION = 1 };

typedef struct building {
  const iso_shards_options *options;
  const iso_source *source;
  iso_arena *arena;
  int64_t shard_bytes;
  int32_t eos;
  iso_build_folder *folder;
} building;

static iso_status plan_text(const building *b, iso_string *out) {
  const iso_shards_options *o = b->options;
  iso_sha256 *hash = iso_sha256_create();
  if (!hash) return iso_fail(ISO_ERR_MEMORY, "data build: no memory");
  for (int64_t f = 0; f < iso_source_files(b->source); f++) {
    const iso_data_file *file = iso_source_file(b->source, f);
    const char *slash = strrchr(file->path, '/');
    iso_string line = {0};
    iso_string_printf(&line, "%s %lld %08x\n", slash ? slash + 1 : file->path, (long long)file->bytes, file->crc32c);
    iso_sha256_update(hash, line.data, line.length);
    iso_string_fini(&line);
  }
  char digest[65];
  iso_sha256_finish(&hash, digest);
  const iso_source_options *s = iso_source_options_of(b->source);
  iso_string_printf(out, "{\"version\": %d, \"files\": \"%s\", \"documents\": %lld, \"format\": ", PLAN_VERSION, digest,
                    (long long)iso_source_documents(b->source));
  iso_json_quote(out, iso_source_format(b->source), strlen(iso_source_format(b->source)));
  iso_string_printf(out, ", \"field\": ");
  iso_json_quote(out, s->field, strlen(s->field));
  iso_string_printf(out, ", \"separator\": ");
  iso_json_quote(out, s->separator, strlen(s->separator));
  iso_string_printf(
      out, ", \"parse_special\": %s, \"on_bad\": \"%s\", \"shard_bytes\": %lld, \"eos\": %d, \"tokenizer\": \"%s\"}\n",
      s->parse_special ? "true" : "false", o->skip_bad ? "skip" : "error", (long long)b->shard_bytes, b->eos,
      iso_tokenizer_fingerprint(o->tokenizer));
  return iso_string_failed(out) ? ISO_ERR_MEMORY : ISO_OK;
}

/* The value of a key in a plan, as it stands there; plans are of plan_text's making: no string holds `, "` unescaped.
 */
static const char *plan_value(const char *plan, const char *key, size_t *length) {
  char name[32];
  snprintf(name, sizeof name, "\"%s\": ", key);
  const char *at = strstr(plan, name);
  if (!at) return NULL;
  at += strlen(name);
  const char *end = strstr(at, ", \"");
  *length = end ? (size_t)(end - at) : strcspn(at, "}\n");
  return at;
}

/* In words: what differs between the plan of the folder and this build's. */
static void tell_difference(const char *there, const char *here, iso_string *out) {
  static const char *const keys[][2] = {{"files", "the files of the source"},
                                        {"documents", NULL},
                                        {"format", NULL},
                                        {"field", NULL},
                                        {"separator", NULL},
                                        {"parse_special", NULL},
                                        {"on_bad", NULL},
                                        {"shard_bytes", NULL},
                                        {"eos", NULL},
                                        {"tokenizer", "the tokenizer"}};
  for (size_t i = 0; i < ISO_COUNT(keys); i++) {
    size_t x = 0, y = 0;
    const char *a = plan_value(there, keys[i][0], &x), *b = plan_value(here, keys[i][0], &y);
    if (!a || !b || (x == y && memcmp(a, b, x) == 0)) continue;
    const char *comma = out->length ? ", " : "";
    if (keys[i][1])
      iso_string_printf(out, "%s%s", comma, keys[i][1]);
    else
      iso_string_printf(out, "%s%s %.*s there and %.*s here", comma, keys[i][0], (int)x, a, (int)y, b);
  }
  if (out->length == 0) iso_string_printf(out, "build.json");
}

static bool is_plans_temporary(const char *name) {
  const size_t length = strlen(name);
  return strncmp(name, "build.json.", 11) == 0 && length > 15 && strcmp(name + length - 4, ".tmp") == 0;
}

/* A folder that was not a build's before must hold nothing but what a start left that did not come to its build.json,
 * which is there before any shard: shards without it are somebody's, and others would be a source of several formats.
 */
static iso_status refuse_foreign(const building *b) {
  char **names;
  size_t count;
  ISO_TRY(iso_path_list(b->arena, b->options->folder, &names, &count));
  for (size_t i = 0; i < count; i++)
    if (strcmp(names[i], "build.json") == 0) return ISO_OK;
  for (size_t i = 0; i < count; i++)
    if (strcmp(names[i], "build.lock") != 0 && !is_plans_temporary(names[i]))
      return iso_fail(ISO_ERR_CONFIG, "data build: '%s' is not empty (%s); give --out a folder of its own",
                      b->options->folder, names[i]);
  return ISO_OK;
}

static iso_status check_plan(building *b) {
  iso_string path = {0}, plan = {0};
  iso_string_printf(&path, "%s/build.json", b->options->folder);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : plan_text(b, &plan);
  bool taken = false;
  if (status == ISO_OK) status = iso_file_publish(path.data, plan.data, plan.length, &taken);
  b->folder->planned = status == ISO_OK && !taken;
  if (status == ISO_OK && taken) {
    char *have = NULL;
    size_t bytes = 0;
    status = iso_file_read(path.data, &have, &bytes);
    if (status == ISO_OK && (bytes != plan.length || memcmp(have, plan.data, bytes) != 0)) {
      iso_string difference = {0};
      tell_difference(have, plan.data, &difference);
      status = iso_fail(ISO_ERR_MISMATCH,
                        "data build: '%s' holds shards of another build (not the same: %s); give --out another folder, "
                        "or remove that one",
                        b->options->folder, difference.data);
      iso_string_fini(&difference);
    }
    free(have);
  }
  iso_string_fini(&plan);
  iso_string_fini(&path);
  return status;
}

/* Is it a shard's .bin or .idx without a record? */
static bool is_stray(const building *b, const char *name) {
  const size_t length = strlen(name);
  if (strncmp(name, "shard-", 6) != 0 || length < 4) return false;
  if (strcmp(name + length - 4, ".bin") != 0 && strcmp(name + length - 4, ".idx") != 0) return false;
  iso_string record = {0};
  iso_string_printf(&record, "%s/%.*s.json", b->options->folder, (int)length - 4, name);
  const bool stray = !iso_string_failed(&record) && !iso_path_exists(record.data);
  iso_string_fini(&record);
  return stray;
}

/* What a killed build wrote under temporary names, and what a failed one published without a record. */
static iso_status remove_leftovers(const building *b) {
  char **names;
  size_t count;
  ISO_TRY(iso_path_list(b->arena, b->options->folder, &names, &count));
  for (size_t i = 0; i < count; i++) {
    const bool ours = strncmp(names[i], "shard", 5) == 0 || strncmp(names[i], "build.json.", 11) == 0;
    if (!(ours && strstr(names[i], ".tmp")) && !is_stray(b, names[i])) continue;
    const char *path = iso_path_join(b->arena, b->options->folder, names[i]);
    if (!path) return iso_fail(ISO_ERR_MEMORY, "data build: no memory");
    if (iso_os.unlink(path) != 0 && errno != ENOENT) return iso_os_fail("remove", path);
  }
  return ISO_OK;
}

/* Shards among the source's files would be documents of the next build. */
static iso_status refuse_inside(const building *b) {
  const char *source = iso_source_options_of(b->source)->path;
  char *outer = iso_path_is_folder(source) ? realpath(source, NULL) : NULL, *inner = realpath(b->options->folder, NULL);
  const size_t length = outer ? strlen(outer) : 0;
  const bool inside = outer && inner && strncmp(inner, outer, length) == 0 && (inner[length] == '/' || !inner[length]);
  free(outer);
  free(inner);
  if (!inside) return ISO_OK;
  (void)rmdir(b->options->folder); /* if it was made just now */
  return iso_fail(ISO_ERR_CONFIG,
                  "data build: '%s' lies in the source '%s', whose next reading would find the shards; give --out a "
                  "folder elsewhere",
                  b->options->folder, source);
}

static iso_status take(building *b) {
  ISO_TRY(iso_path_make(b->options->folder));
  ISO_TRY(refuse_inside(b));
  ISO_TRY(refuse_foreign(b));
  const char *path = iso_path_join(b->arena, b->options->folder, "build.lock");
  if (!path) return iso_fail(ISO_ERR_MEMORY, "data build: no memory");
  b->folder->lock = iso_os.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (b->folder->lock < 0) return iso_os_fail("open", path);
  if (flock(b->folder->lock, LOCK_EX | LOCK_NB) != 0)
    return iso_fail(ISO_ERR_BUSY, "data build: another process builds in '%s'; wait for it, or stop it",
                    b->options->folder);
  ISO_TRY(check_plan(b));
  return remove_leftovers(b);
}

iso_status iso_build_folder_take(const iso_shards_options *options, int64_t shard_bytes, int32_t eos,
                                 iso_build_folder *folder) {
  building b = {.options = options,
                .source = options->source,
                .arena = iso_arena_create(),
                .shard_bytes = shard_bytes,
                .eos = eos,
                .folder = folder};
  *folder = (iso_build_folder){.lock = -1};
  const iso_status status = b.arena ? take(&b) : iso_fail(ISO_ERR_MEMORY, "data build: no memory");
  iso_arena_destroy(&b.arena);
  return status;
}

/* The plan goes last: without it, what is in the folder is taken for somebody's. */
static void forget_plan(const iso_shards_options *options) {
  building b = {.options = options, .arena = iso_arena_create()};
  const char *plan = b.arena ? iso_path_join(b.arena, options->folder, "build.json") : NULL;
  const bool muted = iso_log_mute(true); /* what failed has been said */
  if (plan && remove_leftovers(&b) == ISO_OK) (void)iso_os.unlink(plan);
  iso_log_mute(muted);
  iso_arena_destroy(&b.arena);
}

void iso_build_folder_leave(const iso_shards_options *options, iso_build_folder *folder, bool empty) {
  if (empty && folder->planned) forget_plan(options);
  if (folder->lock >= 0) (void)iso_os.close(folder->lock);
  folder->lock = -1;
}
