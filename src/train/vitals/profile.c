/* SPDX-License-Identifier: Apache-2.0
 *
 * What each instruction of the step's program takes, for whoever looks at the run: one step at a time is timed, and
 * only when somebody has asked since the last one.
 *
 * The executor's own clock readings are used (exec/trace.c), around each instruction by each thread, summed by
 * instruction; a step that is not asked for costs one load. State goes round: the server's thread makes an idle profile
 * a wanted one, the loop records the next step and hands it over, the server's thread reads and clears it.
 *
 * Invariants
 *  1. Only the side whose turn it is touches the trace: IDLE and READY the server's, WANTED and RECORDING the loop's.
 *  2. Recording allocates nothing and changes nothing of the step but its time.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "train/vitals/vitals.h"

static const double PAUSE_S = 2; /* between steps that are looked at */
enum { IDLE, WANTED, RECORDING, READY };

typedef struct row {
  double mean_s, longest_s; /* of a thread, in the step */
  int64_t calls;            /* that had something to do */
  iso_work work;            /* of all of them */
} row;

struct iso_profile {
  iso_exec *exec;
  iso_exec_trace *trace;
  int instructions;
  _Atomic int state;
  int64_t step; /* of what is recorded */
  /* the server's: */
  row *rows; /* [instructions + 1], the last is that of folds */
  int64_t shown, looks;
  double asked_s;
};

iso_status iso_profile_create(const iso_run *run, iso_profile **out) {
  iso_profile *p = calloc(1, sizeof *p);
  *out = p;
  if (p) {
    p->exec = run->engine.exec;
    p->instructions = run->engine.program->instruction_count;
    p->rows = calloc((size_t)p->instructions + 1, sizeof *p->rows);
  }
  iso_status status = p && p->rows ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "no memory for the times of instructions");
  if (status == ISO_OK)
    status = iso_exec_trace_create_sums(iso_device_threads(run->device), p->instructions, &p->trace);
  if (status != ISO_OK) iso_profile_destroy(out);
  return status;
}

void iso_profile_destroy(iso_profile **profile) {
  iso_profile *p = *profile;
  if (!p) return;
  if (atomic_load(&p->state) == RECORDING) iso_exec_trace_set(p->exec, NULL);
  iso_exec_trace_destroy(&p->trace);
  free(p->rows);
  free(p);
  *profile = NULL;
}

void iso_profile_begin(iso_profile *p, bool busy) {
  if (busy || atomic_load_explicit(&p->state, memory_order_acquire) != WANTED) return;
  iso_exec_trace_set(p->exec, p->trace);
  atomic_store_explicit(&p->state, RECORDING, memory_order_relaxed);
}

void iso_profile_end(iso_profile *p, int64_t step) {
  if (atomic_load_explicit(&p->state, memory_order_relaxed) != RECORDING) return;
  iso_exec_trace_set(p->exec, NULL);
  p->step = step;
  atomic_store_explicit(&p->state, READY, memory_order_release);
}

static void read_trace(iso_profile *p) {
  const iso_exec_trace *trace = p->trace;
  for (int i = 0; i <= p->instructions; i++) {
    row *r = &p->rows[i];
    *r = (row){.calls = trace->tracks[0].sums[i].calls, .work = trace->tracks[0].sums[i].work};
    for (int t = 0; t < trace->threads; t++) {
      const double seconds = trace->tracks[t].sums[i].seconds;
      r->mean_s += seconds / trace->threads;
      if (seconds > r->longest_s) r->longest_s = seconds;
    }
  }
  p->shown = p->step;
  p->looks++;
}

static void print_rows(const iso_profile *p, iso_string *out) {
  static const char *const names[] = {"calls", "flop", "bytes", "seconds", "longest_s"};
  for (size_t kind = 0; kind < ISO_COUNT(names); kind++) {
    iso_string_printf(out, ",\n\"%s\": [", names[kind]);
    for (int i = 0; i <= p->instructions; i++) {
      const row *r = &p->rows[i];
      const int64_t counts[] = {r->calls, r->work.flop, r->work.bytes};
      if (i) iso_string_append(out, ",", 1);
      if (kind < ISO_COUNT(counts))
        iso_string_printf(out, "%lld", (long long)counts[kind]);
      else
        iso_string_printf(out, "%.4g", kind == ISO_COUNT(counts) ? r->mean_s : r->longest_s);
    }
    iso_string_append(out, "]", 1);
  }
}

void iso_profile_print(iso_profile *p, iso_string *out) {
  const double now = iso_clock_s();
  if (atomic_load_explicit(&p->state, memory_order_acquire) == READY) {
    read_trace(p);
    iso_exec_trace_clear(p->trace);
    atomic_store_explicit(&p->state, IDLE, memory_order_relaxed);
  }
  if (atomic_load_explicit(&p->state, memory_order_relaxed) == IDLE && (p->looks == 0 || now - p->asked_s >= PAUSE_S)) {
    p->asked_s = now;
    atomic_store_explicit(&p->state, WANTED, memory_order_release);
  }
  iso_string_printf(out, "{\"step\": %lld, \"looks\": %lld, \"threads\": %d", (long long)p->shown, (long long)p->looks,
                    p->trace->threads);
  print_rows(p, out);
  iso_string_printf(out, "}\n");
}
