/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach inspect log: the starts of a run, the segments of its step log, the steps that they lead to, what a step
 * takes, read in full, changed in nothing.
 */
#include <string.h>
#include <time.h>

#include "cli/cli.h"

typedef struct span { /* of a segment: the steps that count */
  int64_t first, last, age_s;
} span;

typedef struct log_view {
  const char *run;
  iso_wal_index index;
  span *spans;
  iso_string faults, reach;
  iso_incarnation *incarnations;
  size_t incarnation_count;
  iso_differed *differed; /* starts that ended since the weights of ranks were not the same */
  size_t differed_count;
  int64_t first_step, last_step, steps; /* in the log; 0: none */
  int64_t bytes, raw_bytes;             /* that these take; of their gradients */
  int64_t durable_step;
  iso_mirror_note mirror, target;
  bool mirrored, has_target;
  double seconds; /* that these steps took */
} log_view;

static int64_t age_of(const log_view *v, const char *name) {
  struct stat info;
  const char *path = iso_arena_printf(v->index.arena, "%s/log/%s", v->run, name);
  return path && iso_os.stat(path, &info) == 0 ? (int64_t)(time(NULL) - info.st_mtime) : 0;
}

static void sum_up(log_view *v) {
  const iso_wal_index *index = &v->index;
  for (size_t i = 0; i < index->step_count; i++) {
    const iso_wal_step *step = &index->steps[i];
    const iso_wal_segment *head = &index->files[step->segment].head;
    span *s = &v->spans[step->segment];
    if (s->first == 0) s->first = step->step;
    s->last = step->step;
    if (iso_wal_index_find(index, step->step) != step) continue; /* written twice: a write of it failed */
    v->steps++;
    if (step->frames) v->raw_bytes += head->elements * (int64_t)iso_dtype_size(head->gradient);
  }
  for (size_t i = 0; i < index->file_count; i++) {
    v->spans[i].age_s = age_of(v, index->files[i].name);
    const int64_t all = index->files[i].counted + index->files[i].superseded;
    if (all) v->bytes += (int64_t)((double)index->files[i].bytes * (double)index->files[i].counted / (double)all);
  }
  if (!index->step_count) return;
  v->first_step = index->steps[0].step;
  v->last_step = index->steps[index->step_count - 1].step;
  v->seconds = iso_metrics_seconds(v->run, v->first_step, v->last_step);
}

static double per(double a, double b) {
  return b > 0 ? a / b : 0;
}

static void print_hosts(const iso_incarnation *in) {
  iso_order *order = in->hosts ? iso_order_parse(in->hosts) : NULL;
  iso_string text = {0};
  if (order) iso_order_print(order, &text);
  iso_text_tame(text.data, text.length);
  if (order && text.data) printf("  hosts %s\n", text.data);
  iso_string_fini(&text);
  iso_order_destroy(&order);
}

/* The next start goes back for it. */
static bool is_pending(const log_view *v, const iso_differed *d) {
  return v->incarnation_count && v->incarnations[v->incarnation_count - 1].number == d->incarnation;
}

static void print_incarnations(const log_view *v) {
  for (size_t i = 0; i < v->incarnation_count; i++) {
    const iso_incarnation *in = &v->incarnations[i];
    printf("incarnation %d begins after step %lld, settings %.12s, tier %s, optimizer kernel %d\n", in->number,
           (long long)in->begins_after, in->config_digest, in->tier, in->optimizer_version);
    print_hosts(in);
  }
  for (size_t i = 0; i < v->differed_count; i++) {
    const iso_differed *d = &v->differed[i];
    printf("incarnation %d ended in step %lld: the weights of rank %lld differed, and were last the same behind step "
           "%lld%s\n",
           d->incarnation, (long long)d->step, (long long)d->rank, (long long)d->same_step,
           is_pending(v, d) ? ", to which the next start goes back" : "");
  }
}

static void print_table(const log_view *v) {
  const iso_wal_index *index = &v->index;
  print_incarnations(v);
  printf("%-26s %14s %11s %8s %10s %10s %8s %8s %10s\n", "segment", "bytes", "incarnation", "steps", "first", "last",
         "void", "packed", "age_s");
  for (size_t i = 0; i < index->file_count; i++) {
    const iso_wal_file *file = &index->files[i];
    const span *s = &v->spans[i];
    printf("%-26s %14lld %11d %8lld %10lld %10lld %8lld %8lld %10lld\n", file->name, (long long)file->bytes,
           file->head.incarnation, (long long)file->counted, (long long)s->first, (long long)s->last,
           (long long)file->superseded, (long long)file->packed, (long long)s->age_s);
  }
  if (v->steps)
    printf("%lld steps, %lld to %lld: %.3f MB a step, %.3f of the gradients' own bytes; %.1f MB/s while training\n",
           (long long)v->steps, (long long)v->first_step, (long long)v->last_step,
           per((double)v->bytes * 1e-6, (double)v->steps), per((double)v->bytes, (double)v->raw_bytes),
           per((double)v->bytes * 1e-6, v->seconds));
  printf("durable step %lld; steps that snapshots and log lead to: %s\n", (long long)v->durable_step,
         v->reach.length ? v->reach.data : "none");
  if (v->has_target)
    printf("durable is what is in %s%s%s\n", v->target.where, v->target.cause[0] ? ", which cannot be written: " : "",
           v->target.cause);
  if (v->mirrored)
    printf("mirrored step %lld, in %s%s%s\n", (long long)v->mirror.step, v->mirror.where,
           v->mirror.cause[0] ? ", which cannot be written: " : "", v->mirror.cause);
  if (index->torn.length) printf("ends cut by a kill, or damaged (isotach verify tells which):\n%s", index->torn.data);
  if (v->faults.length) printf("faults:\n%s", v->faults.data);
}

static void put_segments(const log_view *v, iso_string *out) {
  iso_json_open(out, "segments", '[');
  for (size_t i = 0; i < v->index.file_count; i++) {
    const iso_wal_file *file = &v->index.files[i];
    iso_json_open(out, NULL, '{');
    iso_json_put_text(out, "name", file->name);
    iso_json_put_int(out, "bytes", file->bytes);
    iso_json_put_int(out, "incarnation", file->head.incarnation);
    iso_json_put_int(out, "steps", file->counted);
    iso_json_put_int(out, "first_step", v->spans[i].first);
    iso_json_put_int(out, "last_step", v->spans[i].last);
    iso_json_put_int(out, "void_steps", file->superseded);
    iso_json_put_int(out, "packed_steps", file->packed);
    iso_json_put_int(out, "age_s", v->spans[i].age_s);
    iso_json_shut(out, '}');
  }
  iso_json_shut(out, ']');
}

static void put_differed(const log_view *v, iso_string *out) {
  iso_json_open(out, "differed", '[');
  for (size_t i = 0; i < v->differed_count; i++) {
    const iso_differed *d = &v->differed[i];
    iso_json_open(out, NULL, '{');
    iso_json_put_int(out, "incarnation", d->incarnation);
    iso_json_put_int(out, "step", d->step);
    iso_json_put_int(out, "rank", d->rank);
    iso_json_put_int(out, "same_step", d->same_step);
    iso_json_put_bool(out, "pending", is_pending(v, d));
    iso_json_shut(out, '}');
  }
  iso_json_shut(out, ']');
}

static iso_status print_json(const log_view *v) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "run", v->run);
  iso_json_open(&out, "incarnations", '[');
  for (size_t i = 0; i < v->incarnation_count; i++) {
    const iso_incarnation *in = &v->incarnations[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_int(&out, "number", in->number);
    iso_json_put_int(&out, "begins_after", in->begins_after);
    iso_json_put_text(&out, "config_digest", in->config_digest);
    iso_json_put_text(&out, "tier", in->tier);
    iso_json_put_int(&out, "optimizer_version", in->optimizer_version);
    if (in->hosts) iso_string_printf(&out, ", \"hosts\": %s", in->hosts);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  put_differed(v, &out);
  put_segments(v, &out);
  iso_json_put_int(&out, "steps", v->steps);
  iso_json_put_int(&out, "oldest_step", v->first_step);
  iso_json_put_int(&out, "newest_step", v->last_step);
  iso_json_put_int(&out, "durable_step", v->durable_step);
  if (v->has_target) iso_json_put_text(&out, "target", v->target.where);
  if (v->mirrored) iso_json_put_int(&out, "mirrored_step", v->mirror.step);
  iso_json_put_text(&out, "reach", v->reach.length ? v->reach.data : "none");
  iso_json_put_int(&out, "bytes", v->bytes);
  iso_json_put_int(&out, "gradient_bytes", v->raw_bytes);
  iso_json_put_real(&out, "bytes_per_step", per((double)v->bytes, (double)v->steps));
  iso_json_put_real(&out, "stored_over_gradient", per((double)v->bytes, (double)v->raw_bytes));
  iso_json_put_real(&out, "bytes_per_s", per((double)v->bytes, v->seconds));
  iso_json_put_text(&out, "torn", v->index.torn.length ? v->index.torn.data : "");
  iso_json_put_text(&out, "faults", v->faults.length ? v->faults.data : "");
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status read_reach(log_view *v, const char *uuid) {
  iso_reach reach;
  iso_acknowledged said;
  bool known;
  ISO_TRY(iso_incarnation_first_known(v->run, &known));
  ISO_TRY(iso_reach_read(v->run, uuid, known, &reach));
  iso_reach_print(&reach, &v->reach);
  iso_reach_fini(&reach);
  ISO_TRY(iso_mirror_note_read(v->run, "mirror", &v->mirror, &v->mirrored));
  ISO_TRY(iso_mirror_note_read(v->run, "target", &v->target, &v->has_target));
  ISO_TRY(iso_acknowledged_read(v->run, &said));
  v->durable_step = said.stated > said.shown ? said.stated : said.shown;
  if (v->has_target)
    v->durable_step = v->target.step;
  else if (v->index.newest_durable > v->durable_step)
    v->durable_step = v->index.newest_durable;
  return ISO_OK;
}

static iso_status fill(log_view *v, const char *uuid) {
  v->spans = iso_arena_alloc(v->index.arena, (v->index.file_count + 1) * sizeof *v->spans);
  if (!v->spans) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its log", v->run);
  ISO_TRY(iso_incarnation_list(v->index.arena, v->run, &v->incarnations, &v->incarnation_count));
  const iso_status status =
      iso_differed_list(v->index.arena, v->run, uuid, &v->differed, &v->differed_count, &v->faults);
  if (status != ISO_OK && status != ISO_ERR_FORMAT) return status;
  sum_up(v);
  return read_reach(v, uuid);
}

static iso_status inspect(const char *run, bool json) {
  char uuid[37];
  bool exists;
  log_view v = {.run = run};
  ISO_TRY(iso_run_folder_check(run));
  ISO_TRY(iso_run_folder_read(run, uuid, &exists));
  iso_status status = iso_wal_index_read(run, uuid, true, 0, &v.index, &v.faults);
  if (status == ISO_OK) {
    status = fill(&v, uuid);
    if (status == ISO_OK && json) status = print_json(&v);
    if (status == ISO_OK && !json) print_table(&v);
    iso_wal_index_fini(&v.index);
  } else {
    status = iso_fail(status, "%s: its log cannot be read: %s", run, iso_fault_first(&v.faults));
  }
  iso_string_fini(&v.faults);
  iso_string_fini(&v.reach);
  return status;
}

iso_status iso_verb_inspect_log(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  ISO_TRY(iso_args_bring_run(args));
  return inspect(args->words[0], json);
}
