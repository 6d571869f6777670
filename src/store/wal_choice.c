/* SPDX-License-Identifier: Apache-2.0
 *
 * How the step log is written, by measurement: gradients packed or as they are, writes one after the other or several
 * in flight. Only the form on disk depends on it, never the bits that are read again; so a clock may decide.
 *
 * Packing takes time of a core. Where a core is idle, gradients are packed if that keeps up with the steps (or is
 * sooner done than writing them as they are). Where every core computes, packing takes from the steps: it is done only
 * while storage is what steps wait for, and costs less than that wait.
 *
 * It is tried on one frame's worth now and then, without writing that; while gradients are packed, one step in a while
 * is written as it is, to know what that takes by now.
 */
#include "store/wal_output.h"

#include <string.h>

enum {
  AGREED = 4,     /* steps in a row that must ask for a change */
  SETTLE = 16,    /* steps between changes, at least */
  TRY_EVERY = 64, /* steps between trials */
  RACE = 5,       /* steps that tell whether several writes are sooner done: the first is not counted */
};

void iso_wal_choice_init(iso_wal_choice *c, const iso_wal_options *options, bool can_several) {
  *c = (iso_wal_choice){.options = options, .can_several = can_several, .tried = -TRY_EVERY};
  c->way = (iso_wal_way){options->packed == ISO_WAL_ON, can_several && options->several == ISO_WAL_ON};
  c->settled = !can_several || options->several != ISO_WAL_AUTO;
  snprintf(c->why, sizeof c->why, "%s",
           options->packed == ISO_WAL_ON    ? "packed, as asked for"
           : options->packed == ISO_WAL_OFF ? "as they are, as asked for"
                                            : "as they are: not measured yet");
}

iso_wal_way iso_wal_choice_next(iso_wal_choice *c, bool *try) {
  iso_wal_way way = c->way;
  if (!c->settled) way.several = c->steps % 2 == 0;
  *try = c->options->packed == ISO_WAL_AUTO && c->steps >= 1 && c->steps - c->tried >= TRY_EVERY;
  if (*try && way.packed) {
    way.packed = false; /* to know what that takes by now */
    c->tried = c->steps;
    *try = false;
  }
  return way;
}

void iso_wal_choice_tried(iso_wal_choice *c, double pack_s, double share) {
  c->pack_s = c->pack_s > 0 ? 0.5 * (c->pack_s + pack_s) : pack_s;
  c->share = share;
  c->tried = c->steps;
}

static void race(iso_wal_choice *c, iso_wal_way way, double write_s) {
  if (c->settled || c->steps == 0) return;
  double *best = way.several ? &c->several_s : &c->one_s;
  if (*best <= 0 || write_s < *best) *best = write_s;
  if (c->steps < RACE) return;
  c->settled = true;
  c->way.several = c->several_s > 0 && c->several_s < 0.95 * c->one_s;
}

static void smooth(double *mean, double value) {
  *mean = *mean > 0 ? 0.8 * *mean + 0.2 * value : value;
}

static bool wants_packing(iso_wal_choice *c) {
  const double raw = c->raw_s, pack = c->pack_s, step = c->step_s;
  const double packed = c->packed_s > 0 ? c->packed_s : pack + raw * c->share;
  bool wanted;
  const char *because;
  if (c->options->idle_core) {
    wanted = packed < raw || packed < 0.8 * step;
    because = wanted ? "a core is idle, and it keeps up" : "packing would not keep up with the steps";
  } else {
    wanted = raw > step && packed < raw && pack < raw - step;
    because = wanted       ? "storage is slower than the steps"
              : raw > step ? "every core computes, and packing would take longer than storage"
                           : "every core computes, and storage keeps up";
  }
  snprintf(c->why, sizeof c->why, "%s: %s (a step %.3g s, its log %.3g s as it is, %.3g s packed)",
           wanted ? "packed" : "as they are", because, step, raw, packed);
  return wanted;
}

void iso_wal_choice_learn(iso_wal_choice *c, iso_wal_way way, double write_s, double step_s) {
  race(c, way, write_s);
  if (c->steps > 0) smooth(way.packed ? &c->packed_s : &c->raw_s, write_s);
  if (step_s > 0) smooth(&c->step_s, step_s);
  c->steps++;
  if (c->options->packed != ISO_WAL_AUTO || c->raw_s <= 0 || c->pack_s <= 0 || c->step_s <= 0) return;
  const bool wanted = wants_packing(c);
  c->agreed = wanted == c->way.packed ? 0 : c->agreed + 1;
  if (c->agreed < AGREED || (c->changed && c->steps - c->changed < SETTLE)) return;
  c->way.packed = wanted;
  c->changed = c->steps;
  c->agreed = 0;
}
