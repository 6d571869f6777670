/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of ranks are not the same: whose they are not, and a record of it in the run folder (store's differed.c),
 * so that the next start goes back behind the last step at which they were.
 *
 * The record is on the disk before rank 0 says anything. Should rank 0 be killed before it is, the next rank of its
 * host, which has found the same, leaves it.
 */
#include <string.h>

#include "train/reducer.h"

int iso_ranks_odd(const uint32_t *weights, int count, bool *sure) {
  int right = 0, most = 0;
  for (int a = 0; a < count; a++) {
    int same = 0;
    for (int b = 0; b < count; b++) same += weights[b] == weights[a];
    if (same <= most) continue;
    most = same;
    right = a;
  }
  *sure = most > count / 2;
  for (int r = 0; r < count; r++)
    if (weights[r] != weights[right]) return r;
  return -1;
}

iso_status iso_ranks_differed_begin(iso_ranks_differed *d, const iso_run *run) {
  if (run->config.parallel.check_every == 0) return ISO_OK;
  return iso_differed_reserve(run->config.run, run->incarnation.number, d->reserve);
}

static iso_status keep(iso_ranks_differed *d, int rank) {
  char uuid[37];
  bool exists;
#ifdef ISO_SABOTAGE_DIE_FINDING /* tests/cli/ranks_differ.sh: what is found must be kept all the same */
  if (rank == 0) (void)raise(SIGKILL);
#endif
  const bool quiet = iso_log_quiet(true);
  iso_status status = iso_run_folder_read(d->run, uuid, &exists);
  if (status == ISO_OK && !exists) status = iso_fail(ISO_ERR_NOT_FOUND, "'%s' is no run folder here", d->run);
  if (status == ISO_OK) status = iso_differed_write(d->run, uuid, &d->record, d->reserve);
  iso_log_quiet(quiet);
#ifdef ISO_SABOTAGE_DIE_FOUND
  if (rank == 0) (void)raise(SIGKILL);
#endif
  return status;
}

iso_status iso_ranks_differed_say(iso_ranks_differed *d, const iso_ranks_plan *plan, int rank, const uint32_t *weights,
                                  bool sure) {
  const int odd = (int)d->record.rank, other = odd == 0 ? 1 : 0;
  const bool next = plan->numbers[0] == 0 && plan->mates > 1 && plan->numbers[1] == rank;
  const long long same = (long long)d->record.same_step;
  char host[ISO_HOST_NAME + 16] = "", then[640] = "the next start goes back there by itself (--from-step S: elsewhere)";
  const iso_status kept = d->run && (rank == 0 || next) ? keep(d, rank) : ISO_OK;
  if (rank != 0) return ISO_ERR_MISMATCH; /* rank 0 says it */
  if (plan->world) (void)snprintf(host, sizeof host, " (host %s)", iso_world_host_name(plan->world, odd));
  if (kept != ISO_OK)
    (void)snprintf(then, sizeof then, "then go back with --from-step %lld, which the next start does not know: %.500s",
                   same, iso_last_error());
  return iso_fail(
      ISO_ERR_MISMATCH,
      "step %lld: the weights of rank %d%s are not those of %s (CRC32C %08x and %08x), so %s; all gradients "
      "behind step %lld, the last one at which they were the same, may be wrong: test the memory; %s",
      (long long)d->record.step, odd, host,
      sure         ? "most others"
      : other == 0 ? "rank 0"
                   : "rank 1",
      (unsigned)weights[odd], (unsigned)weights[other], sure ? "its copy is damaged" : "one of the two is damaged",
      same, then);
}
