/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach top --json: what the view is drawn from, under the names of docs/metrics.md.
 */
#include <math.h>
#include <string.h>

#include "cli/top.h"

static const char *const phases[] = {"not begun", "starting", "running", "ended", "killed", "silent"};

static void put_known(iso_string *out, const char *key, int64_t value) {
  if (value >= 0) iso_json_put_int(out, key, value);
}

static void put_text_or_null(iso_string *out, const char *key, const char *text) {
  if (text[0])
    iso_json_put_text(out, key, text);
  else
    iso_json_put_real(out, key, NAN);
}

static void put_signs(const iso_top *top, iso_string *out) {
  iso_json_open(out, "signs", '[');
  for (int i = 0; i < ISO_SIGNS; i++) {
    const iso_top_sign *sign = &top->signs[i];
    iso_json_open(out, NULL, '{');
    iso_json_put_text(out, "sign", iso_sign_names[i]);
    iso_json_put_real(out, "value", sign->value);
    iso_json_put_real(out, "bound", sign->bound);
    iso_json_put_text(out, "unit", iso_sign_units[i]);
    put_text_or_null(out, "measure", sign->measure);
    iso_json_put_bool(out, "out", sign->out);
    if (sign->out) {
      put_known(out, "rank", sign->rank);
      iso_json_put_text(out, "host", sign->host);
      put_known(out, "since_step", sign->since_step);
      iso_json_put_text(out, "cause", sign->cause);
      iso_json_put_real(out, "cause_s", sign->cause_s);
      iso_json_put_text(out, "detail", sign->detail);
    }
    iso_json_shut(out, '}');
  }
  iso_json_shut(out, ']');
}

static void put_ranks(const iso_top *top, iso_string *out) {
  iso_json_put_text(out, "budget_of", top->whole_start ? "start" : "last second");
  iso_json_open(out, "ranks", '[');
  for (int i = 0; i < top->rank_count; i++) {
    const iso_top_rank *rank = &top->ranks[i];
    iso_json_open(out, NULL, '{');
    iso_json_put_int(out, "rank", rank->rank);
    iso_json_put_text(out, "host", rank->host);
    for (int p = 0; p < ISO_PARTS; p++) iso_json_put_real(out, iso_budget_names[p], rank->budget.parts[p]);
    iso_json_shut(out, '}');
  }
  iso_json_shut(out, ']');
}

void iso_top_print_json(const iso_top *top, iso_string *out) {
  const bool gone = top->phase == ISO_TOP_ENDED || top->phase == ISO_TOP_KILLED || top->phase == ISO_TOP_SILENT;
  iso_json_open(out, NULL, '{');
  iso_json_put_text(out, "run", top->run);
  iso_json_put_text(out, "state", phases[top->phase]);
  iso_json_put_text(out, "verdict", top->verdict);
  put_known(out, "exit_code", top->exit_code);
  if (top->owner.pid) {
    iso_json_put_int(out, "process", top->owner.pid);
    iso_json_put_text(out, "host", top->owner.host);
  }
  if (top->stopped_pid) {
    iso_json_put_int(out, "stopped_process", top->stopped_pid);
    put_known(out, "stopped_rank", top->stopped_rank);
  }
  if (top->since_s > 0) iso_json_put_real(out, gone ? "not_running_since" : "time", top->since_s);
  iso_json_put_int(out, "step", top->step);
  if (top->steps) iso_json_put_int(out, "steps", top->steps);
  iso_json_put_int(out, "durable_step", top->durable_step);
  iso_json_put_int(out, "incarnation", top->incarnation);
  iso_json_put_real(out, "loss", top->loss);
  iso_json_put_real(out, "lr", top->lr);
  iso_json_put_real(out, "grad_norm", top->grad_norm);
  iso_json_put_real(out, "tokens_per_s", top->tokens_per_s);
  iso_json_put_real(out, "mfu", top->mfu);
  if (top->phase == ISO_TOP_RUNNING) iso_json_put_real(out, "eta_s", top->eta_s);
  put_known(out, "ring_depth", top->ring_depth);
  put_known(out, "ring_slots", top->ring_slots);
  put_known(out, "log_behind", top->log_behind);
  put_known(out, "memory_bytes", top->memory_bytes);
  put_signs(top, out);
  put_ranks(top, out);
  iso_json_put_text(out, "note", top->note);
  iso_json_shut(out, '}');
}
