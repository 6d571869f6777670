/* SPDX-License-Identifier: Apache-2.0
 *
 * The dashboard: one page, and what it draws as JSON.
 *
 *   run, uuid, version, tier, steps (of the schedule), parameters, ranks, threads, memory_bytes
 *   latest     {NAME: number} of the last step
 *   smoothed   {tokens_per_s, mfu, eta_s} as in vitals.json and on the progress line
 *   taken      steps of this start
 *   parts      [{name, last, p50, p95, p99, sum}] of a step's time
 *   points     iso_points_print; lag: step minus durable step of the points
 *   gradients  {layers: [NAME], step: [], rms: [[of each layer] of each look]}
 *   health     {signs, ranks} of iso_health_look; null: not known yet
 *   breaches   the newest lines of breaches.jsonl
 *   timeline   [{kind, step, at_step, time, seconds, text}]: starts, snapshots, the log
 *
 * Looks at gradients are kept for the whole start: when there is no more room, every other one is dropped.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

enum { LOOKS = 160, BREACHES = 100 };

struct iso_flow {
  pthread_mutex_t lock;
  const iso_gradients *gradients; /* borrowed: names and count */
  float *rms;                     /* [LOOKS][count] */
  int64_t step[LOOKS];
  size_t looks;
};

iso_status iso_flow_create(const iso_gradients *gradients, iso_flow **out) {
  iso_flow *flow = calloc(1, sizeof *flow);
  *out = flow;
  if (flow) {
    (void)pthread_mutex_init(&flow->lock, NULL);
    flow->gradients = gradients;
    flow->rms = calloc(LOOKS * gradients->count + 1, sizeof *flow->rms);
  }
  if (flow && flow->rms) return ISO_OK;
  iso_flow_destroy(out);
  return iso_fail(ISO_ERR_MEMORY, "no memory for the dashboard's gradients");
}

void iso_flow_destroy(iso_flow **flow) {
  if (!*flow) return;
  (void)pthread_mutex_destroy(&(*flow)->lock);
  free((*flow)->rms);
  free(*flow);
  *flow = NULL;
}

void iso_flow_add(iso_flow *flow, int64_t step) {
  const size_t count = flow->gradients->count;
  (void)pthread_mutex_lock(&flow->lock);
  if (flow->looks == LOOKS) {
    for (size_t i = 1; i < LOOKS / 2; i++) {
      flow->step[i] = flow->step[2 * i];
      memcpy(flow->rms + i * count, flow->rms + 2 * i * count, count * sizeof *flow->rms);
    }
    flow->looks = LOOKS / 2;
  }
  for (size_t i = 0; i < count; i++) {
    const iso_layer_spread *layer = &flow->gradients->layers[i];
    flow->rms[flow->looks * count + i] = layer->count ? (float)sqrt(layer->squares / (double)layer->count) : NAN;
  }
  flow->step[flow->looks++] = step;
  (void)pthread_mutex_unlock(&flow->lock);
}

static void put_member(iso_string *out, const char *name, double value) {
  iso_string_printf(out, "\"%s\": ", name);
  iso_json_number(out, value, 9);
}

static void put_text(iso_string *out, const char *name, const char *text) {
  iso_json_text(out, name, text);
  iso_string_printf(out, ", ");
}

static void put_flow(iso_flow *flow, iso_string *out) {
  const size_t count = flow->gradients->count;
  iso_string_printf(out, "{\"layers\": [");
  for (size_t i = 0; i < count; i++) {
    iso_string_printf(out, i ? ", " : "");
    iso_json_quote(out, flow->gradients->layers[i].name, strlen(flow->gradients->layers[i].name));
  }
  (void)pthread_mutex_lock(&flow->lock);
  iso_string_printf(out, "], \"step\": [");
  for (size_t look = 0; look < flow->looks; look++)
    iso_string_printf(out, "%s%lld", look ? "," : "", (long long)flow->step[look]);
  iso_string_printf(out, "], \"rms\": [");
  for (size_t look = 0; look < flow->looks; look++) {
    iso_string_printf(out, look ? ",\n[" : "[");
    for (size_t i = 0; i < count; i++) {
      const double value = (double)flow->rms[look * count + i];
      iso_string_printf(out, isfinite(value) ? "%s%.4g" : "%snull", i ? "," : "", value);
    }
    iso_string_printf(out, "]");
  }
  (void)pthread_mutex_unlock(&flow->lock);
  iso_string_printf(out, "]}");
}

static void put_points(const iso_live *live, iso_string *out) {
  const iso_points *points = iso_live_points(live);
  const size_t step = (size_t)(iso_vital_find("step") - iso_vitals);
  const size_t durable = (size_t)(iso_vital_find("durable_step") - iso_vitals);
  iso_string_printf(out, ",\n\"points\": ");
  iso_points_print(points, out);
  iso_string_printf(out, ",\n\"lag\": [");
  for (size_t i = 0; i < points->count; i++) {
    iso_string_printf(out, i ? "," : "");
    iso_json_number(
        out, iso_point_mean(iso_points_get(points, step, i)) - iso_point_mean(iso_points_get(points, durable, i)), 9);
  }
  iso_string_printf(out, "]");
}

static double last_of(const iso_live *live, const char *name, int64_t *steps) {
  iso_live_number number;
  iso_live_read(live, (size_t)(iso_vital_find(name) - iso_vitals), &number);
  *steps = number.steps;
  return number.last;
}

/* Speed, what follows from it, and nothing else: a step has as many tokens as the last one, and its MFU is against the
 * same peak. */
static void put_smoothed(const iso_live *live, const iso_outputs_head *head, iso_string *out) {
  int64_t taken;
  const double speed = iso_live_smoothed(live, "tokens_per_s"), last = last_of(live, "tokens_per_s", &taken);
  const double left = (double)head->steps - last_of(live, "step", &taken);
  iso_string_printf(out, ",\n\"smoothed\": {");
  put_member(out, "tokens_per_s", speed);
  iso_string_printf(out, ", ");
  put_member(out, "mfu", speed / last * last_of(live, "mfu", &taken));
  iso_string_printf(out, ", ");
  put_member(out, "eta_s", left * last * last_of(live, "wall_s", &taken) / speed);
  iso_string_printf(out, "}, \"taken\": %lld", (long long)taken);
}

static void put_numbers(const iso_live *live, const iso_outputs_head *head, iso_string *out) {
  iso_live_number number;
  iso_string_printf(out, ",\n\"latest\": {");
  for (size_t row = 0; row < iso_vital_count; row++) {
    iso_live_read(live, row, &number);
    iso_string_printf(out, row ? ", " : "");
    put_member(out, iso_vitals[row].name, number.last);
  }
  iso_string_printf(out, "}");
  put_smoothed(live, head, out);
  iso_string_printf(out, ",\n\"parts\": [");
  for (size_t row = 0, some = 0; row < iso_vital_count; row++) {
    if (!iso_vital_is_part(&iso_vitals[row])) continue;
    iso_live_read(live, row, &number);
    iso_string_printf(out, "%s\n{\"name\": \"%s\"", some++ ? "," : "", iso_vitals[row].name);
    const struct {
      const char *name;
      double value;
    } members[] = {
        {"last", number.last}, {"p50", number.p50}, {"p95", number.p95}, {"p99", number.p99}, {"sum", number.sum}};
    for (size_t i = 0; i < ISO_COUNT(members); i++) {
      iso_string_printf(out, ", ");
      put_member(out, members[i].name, members[i].value);
    }
    iso_string_printf(out, "}");
  }
  iso_string_printf(out, "]");
}

/* The newest lines of breaches.jsonl; each is JSON by itself, and those that are damaged do not count. */
static void put_breaches(const char *run, iso_string *out) {
  char *text = NULL;
  size_t bytes = 0, lines = 0;
  if (iso_lines_read(run, "breaches", &text, &bytes, NULL) != ISO_OK) text = NULL;
  for (size_t i = 0; text && i < bytes; i++) lines += text[i] == '\n';
  iso_string_printf(out, ",\n\"breaches\": [");
  const char *end;
  for (const char *line = text; line && (end = strchr(line, '\n')); line = end + 1) {
    if (lines-- > BREACHES) continue;
    iso_string_append(out, line, (size_t)(end - line));
    if (lines) iso_string_append(out, ",\n", 2);
  }
  iso_string_append(out, "]", 1);
  free(text);
}

void iso_dashboard_data(const iso_dashboard *d, iso_string *out) {
  const iso_outputs_head *head = d->head;
  iso_string_printf(out, "{");
  put_text(out, "run", head->run);
  put_text(out, "uuid", head->uuid);
  put_text(out, "version", ISO_VERSION);
  put_text(out, "tier", head->tier);
  iso_string_printf(out,
                    "\"steps\": %lld, \"parameters\": %lld, \"ranks\": %d, \"threads\": %d, \"memory_bytes\": %lld",
                    (long long)head->steps, (long long)head->parameters, head->ranks, head->threads,
                    (long long)iso_memory_resident());
  put_numbers(d->live, head, out);
  put_points(d->live, out);
  iso_string_printf(out, ",\n\"gradients\": ");
  put_flow(d->flow, out);
  iso_string_printf(out, ",\n\"health\": %s", d->health ? d->health : "null");
  put_breaches(head->run, out);
  iso_string_printf(out, ",\n\"timeline\": ");
  iso_timeline_print(d->timeline, out);
  iso_string_printf(out, "}\n");
}

void iso_dashboard_page(const iso_outputs_head *head, iso_string *out) {
  iso_string title = {0};
  iso_page_text(head->run, &title);
  const iso_page_part parts[] = {{"title", title.data ? title.data : ""},
                                 {"style", iso_page_style},
                                 {"charts", iso_page_charts},
                                 {"panels", iso_page_panels},
                                 {"program", iso_page_program},
                                 {"script", iso_page_dashboard_script}};
  iso_page_fill(iso_page_dashboard, parts, ISO_COUNT(parts), out);
  iso_string_fini(&title);
}
