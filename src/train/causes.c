/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the time of all starts went, by cause: for each start the seconds of the rank where the cause took most, and
 * their sum; rank, host and words are those of the start where it took most. So a cause never gets less by another
 * start. Of a start that was killed no more is known than its lines, which are rank 0's: the parts of the budget.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

typedef struct totals {
  double seconds[ISO_CAUSES], most[ISO_CAUSES]; /* most: of one start */
  int starts[ISO_CAUSES];                       /* that it took seconds of */
  int64_t number[ISO_CAUSES];                   /* of the start where it took most; 0: not known */
  const iso_start_cause *worst[ISO_CAUSES];     /* there; NULL: only its lines are known */
} totals;

static void add(totals *t, int c, double seconds, int64_t number, const iso_start_cause *of) {
  if (!(seconds > 0)) return;
  t->seconds[c] += seconds;
  t->starts[c]++;
  if (seconds <= t->most[c]) return;
  t->most[c] = seconds;
  t->number[c] = number;
  t->worst[c] = of;
}

/* The lines of each start stand together. */
static void add_lines(totals *t, const iso_history *h, const iso_starts *starts) {
  const double *of = iso_history_values(h, "incarnation");
  for (int64_t begin = 0, end; begin < h->steps; begin = end) {
    const double number = of[begin];
    for (end = begin + 1; end < h->steps && (of[end] == number || (isnan(number) && isnan(of[end]))); end++) continue;
    const iso_start_record *record = isnan(number) ? NULL : iso_starts_find(starts, (int64_t)number);
    if (record && record->ended) continue;
    for (int c = 0; c < ISO_CAUSES; c++) {
      if (iso_cause_parts[c] == ISO_PART_WALL) continue;
      const double *values = iso_history_values(h, iso_budget_names[iso_cause_parts[c]]);
      double sum = 0;
      for (int64_t i = begin; i < end; i++)
        if (isfinite(values[i])) sum += values[i];
      add(t, c, sum, isnan(number) ? 0 : (int64_t)number, NULL);
    }
  }
}

static void name_source(const iso_history *h, iso_cause_item *out) {
  const iso_starved *worst = &h->starved[0];
  for (int i = 1; i < ISO_HISTORY_STARVED; i++)
    if (h->starved[i].seconds > worst->seconds) worst = &h->starved[i];
  if (worst->steps == 0) return;
  snprintf(out->detail, sizeof out->detail, "%lld batch%s came late, %.3f s of it at %.*s of %.*s",
           (long long)h->starved_steps, h->starved_steps == 1 ? "" : "es", worst->seconds, (int)worst->stage_bytes - 2,
           worst->stage + 1, (int)(worst->source_bytes < 150 ? worst->source_bytes : 150), worst->source);
}

static void describe(const totals *t, int c, const iso_history *h, iso_cause_item *out) {
  const iso_start_cause *worst = t->worst[c];
  if (c == ISO_CAUSE_RANK) out->rank = -1; /* rank 0's lines say how long it waited, not for whom */
  if (worst) {
    out->rank = worst->rank;
    out->held_up = worst->held_up;
    snprintf(out->host, sizeof out->host, "%s", worst->host);
  }
  if (c == ISO_CAUSE_OTHER) {
    snprintf(out->detail, sizeof out->detail, "host work: lines, locks, handing over");
    return;
  }
  const bool said = worst && worst->detail[0];
  if (t->starts[c] > 1 && t->number[c])
    snprintf(out->detail, sizeof out->detail, "most of it in start %lld%s%s", (long long)t->number[c], said ? ": " : "",
             said ? worst->detail : "");
  else if (said)
    snprintf(out->detail, sizeof out->detail, "%s", worst->detail);
  if (c == ISO_CAUSE_SOURCE) name_source(h, out);
}

static void list_restart(const iso_starts *starts, int64_t again_steps, double again_s, iso_cause_item *out) {
  int64_t replayed = 0;
  double replay_s = 0;
  for (size_t i = 0; i < starts->count; i++) {
    replayed += starts->list[i].replayed_steps;
    if (isfinite(starts->list[i].replay_s)) replay_s += starts->list[i].replay_s;
  }
  *out = (iso_cause_item){.name = "restart", .seconds = again_s + replay_s};
  snprintf(out->detail, sizeof out->detail, "%lld step%s run again for %.3f s, %lld replayed from the log in %.3f s",
           (long long)again_steps, again_steps == 1 ? " was" : "s were", again_s, (long long)replayed, replay_s);
}

static int compare(const void *a, const void *b) {
  const iso_cause_item *x = a, *y = b;
  return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

int iso_causes_list(const iso_history *history, const iso_starts *starts, int64_t again_steps, double again_s,
                    iso_cause_item out[ISO_CAUSES + 1]) {
  totals t = {0};
  int count = 0;
  for (size_t i = 0; i < starts->count; i++)
    for (int c = 0; c < ISO_CAUSES && starts->list[i].ended; c++)
      add(&t, c, starts->list[i].causes[c].seconds, starts->list[i].number, &starts->list[i].causes[c]);
  add_lines(&t, history, starts);
  for (int c = 0; c < ISO_CAUSE_UNKNOWN; c++) {
    out[count] = (iso_cause_item){.name = iso_cause_names[c], .seconds = t.seconds[c]};
    describe(&t, c, history, &out[count++]);
  }
  list_restart(starts, again_steps, again_s, &out[count++]);
  qsort(out, (size_t)count, sizeof *out, compare);
  return count;
}
