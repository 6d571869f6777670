/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor: before a run, is this machine fit for it? Each check is a row of one table: what was found, what is
 * wanted, the verdict, what to do. The checks are in doctor_machine.c, doctor_links.c, doctor_inputs.c, doctor_run.c,
 * doctor_storage.c and doctor_steps.c.
 *
 * Invariants
 *  1. The run's folder is not written to; what is tried is tried in a folder beside it, which is removed.
 *  2. A check that could not be made is a row that says so, never a row that is missing.
 *  3. The exit code is 0 when all is well, 1 with warnings, 2 when something would stop the run.
 *
 * Several ranks are processes of this host and of this binary; under mpirun or srun they are compared first
 * (doctor_world.c), and all other rows are rank 0's.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

void iso_doctor_add(iso_doctor *d, const char *check, iso_doctor_verdict verdict, const char *wanted,
                    const char *advice, const char *found, ...) {
  char text[2048];
  va_list values;
  va_start(values, found);
  vsnprintf(text, sizeof text, found, values);
  va_end(values);
  char *kept = iso_arena_strdup(d->arena, text);
  if (verdict == ISO_VERDICT_STOP) d->stops = true;
  if (d->count == ISO_MOST_FINDINGS) return;
  d->findings[d->count++] = (iso_doctor_row){.check = check,
                                             .found = kept ? kept : "",
                                             .wanted = wanted ? wanted : "",
                                             .advice = verdict == ISO_VERDICT_OK || !advice ? "" : advice,
                                             .verdict = verdict};
}

bool iso_doctor_warned(const iso_doctor *d, const char *check) {
  for (int i = 0; i < d->count; i++)
    if (strcmp(d->findings[i].check, check) == 0 && d->findings[i].verdict == ISO_VERDICT_WARNING) return true;
  return false;
}

void iso_doctor_failed(iso_doctor *d, const char *check, iso_doctor_verdict verdict, const char *wanted,
                       const char *advice) {
  iso_doctor_add(d, check, verdict, wanted, advice, "%s", iso_last_error());
}

/* Is it there, and no folder, or can it not be? That is said. */
static bool in_the_way(const iso_doctor *d, const char *path) {
  struct stat info;
  if (iso_os.stat(path, &info) == 0) {
    if (S_ISDIR(info.st_mode)) return false;
    (void)iso_fail(ISO_ERR_CONFIG, "`run` = %s: %s is a file", d->config.run, path);
    return true;
  }
  if (errno != ENOENT && errno != ENOTDIR) { /* ENOTDIR: the file itself is found on the way up */
    (void)iso_os_fail("look at", path);
    return true;
  }
  if (!iso_path_is_dangling(path)) return false;
  (void)iso_fail(ISO_ERR_CONFIG, "`run` = %s: %s is a symbolic link that leads nowhere", d->config.run, path);
  return true;
}

/* A name that no file system takes; those of folders that are to be made are not looked at otherwise. */
static bool is_too_long(const iso_doctor *d) {
  for (const char *at = d->config.run; *at; at += *at == '/') {
    const size_t length = strcspn(at, "/");
    if (length > NAME_MAX) {
      (void)iso_fail(ISO_ERR_CONFIG, "`run`: a name in it has %zu bytes, more than the %d that a file may have", length,
                     NAME_MAX);
      return true;
    }
    at += length;
  }
  return false;
}

static bool is_root(const iso_doctor *d) {
  if (!iso_path_is_root(d->config.run)) return false;
  (void)iso_fail(ISO_ERR_CONFIG, "`run` = %s is the root of the file system", d->config.run);
  return true;
}

const char *iso_doctor_folder(iso_doctor *d) {
  char *parent = iso_arena_strdup(d->arena, d->config.run), root[] = "/", here[] = ".";
  for (size_t n = parent ? strlen(parent) : 0; n > 1 && parent[n - 1] == '/'; n--) parent[n - 1] = '\0';
  bool found = false;
  if (is_too_long(d) || is_root(d)) return NULL;
  while (parent && !found) {
    if (in_the_way(d, parent)) return NULL;
    char *slash = strrchr(parent, '/');
    if (slash && slash != parent)
      *slash = '\0';
    else
      parent = slash ? root : here;
    found = iso_path_is_folder(parent);
  }
  char *made = parent ? iso_arena_printf(d->arena, "%s/isotach-doctor.XXXXXX", parent) : NULL;
  if (!made) {
    (void)iso_fail(ISO_ERR_MEMORY, "doctor: no memory");
    return NULL;
  }
  if (mkdtemp(made)) return made;
  (void)iso_os_fail("create a folder in", parent);
  return NULL;
}

const char *iso_doctor_bytes(const iso_doctor *d, double bytes) {
  static const char *const units[] = {"bytes", "KB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (unit + 1 < ISO_COUNT(units) && bytes >= 999.5) bytes *= 1e-3, unit++;
  const char *text = iso_arena_printf(d->arena, "%.*f %s",
                                      unit == 0 || bytes >= 99.5 ? 0
                                      : bytes >= 9.95            ? 1
                                                                 : 2,
                                      bytes, units[unit]);
  return text ? text : "?";
}

static const char *const verdict_names[] = {"ok", "warning", "stop", "skipped"};

static int count_of(const iso_doctor *d, iso_doctor_verdict verdict) {
  int count = 0;
  for (int i = 0; i < d->count; i++) count += d->findings[i].verdict == verdict;
  return count;
}

static const char *summary(const iso_doctor *d) {
  return d->stops ? "do not start" : count_of(d, ISO_VERDICT_WARNING) ? "fit, with warnings" : "fit";
}

/* Text broken at spaces into lines of `width`, those behind the first below it. */
static void put_wrapped(iso_string *out, const char *text, int indent, int width) {
  int column = 0;
  while (*text) {
    const size_t word = strcspn(text, " ");
    if (column && column + 1 + (int)word > width) {
      iso_string_printf(out, "\n%*s", indent, "");
      column = 0;
    }
    iso_string_printf(out, "%s%.*s", column ? " " : "", (int)word, text);
    column += (int)word + (column ? 1 : 0);
    text += word;
    while (*text == ' ') text++;
  }
}

static iso_status print_table(const iso_doctor *d) {
  enum { CHECK = 20, VERDICT = 9, WIDTH = 90 };
  iso_string out = {0};
  iso_string_printf(&out, "%-*s%-*s%s\n", CHECK, "check", VERDICT, "verdict", "found");
  for (int i = 0; i < d->count; i++) {
    const iso_doctor_row *f = &d->findings[i];
    iso_string_printf(&out, "%-*s%-*s", CHECK, f->check, VERDICT, verdict_names[f->verdict]);
    put_wrapped(&out, f->found, CHECK + VERDICT, WIDTH);
    if (f->wanted[0]) {
      iso_string_printf(&out, "\n%*swanted: ", CHECK + VERDICT, "");
      put_wrapped(&out, f->wanted, CHECK + VERDICT + 8, WIDTH - 8);
    }
    if (f->advice[0]) {
      iso_string_printf(&out, "\n%*sto do:  ", CHECK + VERDICT, "");
      put_wrapped(&out, f->advice, CHECK + VERDICT + 8, WIDTH - 8);
    }
    iso_string_printf(&out, "\n");
  }
  iso_string_printf(&out, "%s: %s (%d ok, %d warning%s, %d that stop%s a run, %d skipped)\n", d->config.run, summary(d),
                    count_of(d, ISO_VERDICT_OK), count_of(d, ISO_VERDICT_WARNING),
                    iso_plural(count_of(d, ISO_VERDICT_WARNING)), count_of(d, ISO_VERDICT_STOP),
                    count_of(d, ISO_VERDICT_STOP) == 1 ? "s" : "", count_of(d, ISO_VERDICT_SKIPPED));
  return iso_table_print(&out);
}

static void put_links(const iso_doctor *d, iso_string *out) {
  iso_json_open(out, "links", '[');
  for (int i = 0; i < d->link_count; i++) {
    const iso_doctor_link *l = &d->links[i];
    iso_json_open(out, NULL, '{');
    iso_json_open(out, "ranks", '[');
    for (int side = 0; side < 2; side++) iso_json_put_int(out, NULL, l->ranks[side]);
    iso_json_shut(out, ']');
    iso_json_open(out, "cpus", '[');
    for (int side = 0; side < 2; side++) iso_json_put_int(out, NULL, l->cpus[side]);
    iso_json_shut(out, ']');
    iso_json_put_real(out, "latency_ns", l->latency_ns);
    iso_json_put_real(out, "gb_per_s", l->gb_per_s);
    iso_json_shut(out, '}');
  }
  iso_json_shut(out, ']');
}

static iso_status print_json(const iso_doctor *d) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "run", d->config.run);
  iso_json_put_int(&out, "ranks", d->ranks);
  iso_json_put_text(&out, "verdict", summary(d));
  iso_json_open(&out, "checks", '[');
  for (int i = 0; i < d->count; i++) {
    const iso_doctor_row *f = &d->findings[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "check", f->check);
    iso_json_put_text(&out, "found", f->found);
    iso_json_put_text(&out, "wanted", f->wanted);
    iso_json_put_text(&out, "verdict", verdict_names[f->verdict]);
    iso_json_put_text(&out, "advice", f->advice);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  put_links(d, &out);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

/* The line of a run that is not all well; the table says more. */
static iso_status conclude(const iso_doctor *d) {
  const iso_doctor_verdict worst = d->stops ? ISO_VERDICT_STOP : ISO_VERDICT_WARNING;
  if (count_of(d, worst) == 0) return ISO_OK;
  iso_string names = {0};
  for (int i = 0; i < d->count; i++)
    if (d->findings[i].verdict == worst)
      iso_string_printf(&names, "%s%s", names.length ? ", " : "", d->findings[i].check);
  iso_status status = ISO_ERR_CHECK; /* for the exit code: warnings are no error */
  if (d->stops)
    status =
        iso_fail(ISO_ERR_CONFIG, "doctor: do not start %s: %s; the table says what to do", d->config.run, names.data);
  else
    iso_warn("doctor: %s is fit, with warnings: %s; the table says what to do", d->config.run, names.data);
  iso_string_fini(&names);
  return status;
}

static void examine(iso_doctor *d) {
  const bool quiet = iso_log_quiet(true);       /* failures are rows */
  (void)setenv("ISOTACH_S3_GIVE_UP_S", "8", 0); /* a service that does not answer is a row too, and soon */
  iso_doctor_machine(d);
  iso_doctor_inputs(d);
  iso_doctor_steps(d);
  iso_doctor_storage(d); /* knows by then what the steps write */
  iso_log_quiet(quiet);
}

static const char *environment(void *self, const char *name) {
  (void)self;
  return getenv(name);
}

iso_status iso_verb_doctor(iso_args *args) {
  iso_doctor d = {.ranks = 1, .steps_s = 10, .patience = 1};
  bool json = false, quick = false;
  const iso_flag flags[] = {
      {"ranks", ISO_FLAG_INT, &d.ranks, "as of train: processes of this host that share the work (1)", 1,
       ISO_MOST_RANKS},
      {"steps-s", ISO_FLAG_REAL, &d.steps_s, "seconds of real steps; 0: none (10)", 0, 3600},
      {"quick", ISO_FLAG_BOOL, &quick, "measurements of a tenth of the time, which say less", 0, 0},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  if (quick) d.patience = 0.1;
  iso_launch launch;
  ISO_TRY(iso_launch_read(environment, NULL, &launch));
  d.launched = launch.launcher && launch.ranks != 1;
  d.config_path = args->words[0];
  d.overrides = args->words + 1;
  d.override_count = args->word_count - 1;
  ISO_TRY(iso_config_read(d.config_path, d.overrides, d.override_count, &d.config));
  d.arena = iso_arena_create();
  iso_status status = d.arena ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "doctor: no memory");
  bool leads = true;
  if (status == ISO_OK && d.launched) status = iso_doctor_world(&d, &launch, &leads);
  if (status == ISO_OK && leads) {
    examine(&d);
    status = json ? print_json(&d) : print_table(&d);
    if (status == ISO_OK) status = conclude(&d);
  }
  iso_arena_destroy(&d.arena);
  iso_config_fini(&d.config);
  return status;
}
