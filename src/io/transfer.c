/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress lines for work that may take long before the first step: silent when it is quick.
 */
#include "io/io.h"

enum { FIRST_AFTER_S = 2, THEN_EVERY_S = 5 };

void iso_transfer_init(iso_transfer *transfer, const char *what, const char *path, int64_t total) {
  double now = iso_clock_s();
  *transfer = (iso_transfer){.what = what, .path = path, .total = total, .began_s = now, .next_s = now + FIRST_AFTER_S};
}

static void line(const iso_transfer *transfer, int64_t done, double took_s) {
  double mib = 1048576.0, rate = took_s > 0 ? (double)done / mib / took_s : 0;
  if (transfer->total > 0)
    iso_note("%s '%s': %.1f of %.1f MiB (%.0f%%, %.1f MiB/s)", transfer->what, transfer->path, (double)done / mib,
             (double)transfer->total / mib, 100.0 * (double)done / (double)transfer->total, rate);
  else
    iso_note("%s '%s': %.1f MiB (%.1f MiB/s)", transfer->what, transfer->path, (double)done / mib, rate);
}

void iso_transfer_at(iso_transfer *transfer, int64_t done) {
  double now = iso_clock_s();
  if (now < transfer->next_s) return;
  line(transfer, done, now - transfer->began_s);
  transfer->next_s = now + THEN_EVERY_S;
  transfer->shown = true;
}

void iso_transfer_end(iso_transfer *transfer, int64_t done) {
  if (transfer->shown) line(transfer, done, iso_clock_s() - transfer->began_s);
}
