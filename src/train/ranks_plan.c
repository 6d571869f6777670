/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks before there are any: who owns which leaves, and what memory that takes.
 *
 * Ranks of one host share memory, so what parallel.zero shares out is not cut into pieces that are sent around: it is
 * there once for a host, and each of its ranks updates its part.
 *
 *   zero        0                        1, 2                              3
 *   masters     each rank                once for a host                   once
 *   moments     each rank                once                              once
 *   compute     each rank                each rank, gathered after the     once
 *   copy                                 update from the masters
 *
 * With float32 there is no compute copy. Partial sums are each rank's, the reduced gradient is there once, always.
 */
#include <assert.h>

#include "train/train.h"

size_t iso_ranks_own_bytes(const iso_ranks_plan *plan) {
  int64_t most = 0;
  for (int r = 0; r < plan->count; r++) {
    const int64_t buffers = iso_leaf_buffers(plan->first_leaf[r], plan->first_leaf[r + 1] - plan->first_leaf[r]);
    if (buffers > most) most = buffers;
  }
  return (size_t)(most * plan->elements) * sizeof(float);
}

size_t iso_ranks_host_bytes(const iso_ranks_plan *plan) {
  static float somewhere;
  static iso_bf16 elsewhere;
  iso_flat_shared shared = {0};
  if (plan->zero >= 1) shared.master = shared.moment1 = shared.moment2 = &somewhere;
  if (plan->zero >= 3 && plan->compute == ISO_BF16) shared.weights = &elsewhere;
  const iso_flat_options flat = {.elements = plan->elements,
                                 .compute = plan->compute,
                                 .gradient = plan->gradient,
                                 .train = true,
                                 .shared = &shared};
  return iso_ranks_common_bytes(plan) + (size_t)plan->mates * (iso_flat_bytes(&flat) + iso_ranks_own_bytes(plan));
}

void iso_ranks_plan_init(iso_ranks_plan *plan) {
  assert(plan->count > 0);
  plan->hosts = 1;
  plan->mates = plan->count;
  for (int r = 0; r < plan->count; r++) {
    plan->numbers[r] = r;
    plan->host[r] = 0;
  }
  for (int r = 0; r <= plan->count; r++) plan->first_leaf[r] = (int)(plan->workers * r / plan->count);
}

/* What parallel.zero does for a host of several ranks. */
static void print_zero(const iso_ranks_plan *plan) {
  iso_ranks_plan without = *plan;
  if (!plan->zero || plan->mates == 1) return;
  without.zero = 0;
  printf("# parallel.zero %d: %.1f MB of weights, moments and gradients a host of %d ranks, %.1f MB with 0\n",
         plan->zero, (double)iso_ranks_host_bytes(plan) * 1e-6, plan->mates,
         (double)iso_ranks_host_bytes(&without) * 1e-6);
}

/* Rows of the memory plan: what a host of so many ranks has. */
void iso_ranks_plan_rows(int64_t elements, iso_dtype compute, iso_dtype gradient, int64_t workers, bool log,
                         iso_string *out) {
  for (int count = 2; count <= workers && count <= 8; count *= 2) {
    iso_ranks_plan plan = {
        .count = count, .workers = workers, .elements = elements, .compute = compute, .gradient = gradient, .log = log};
    iso_ranks_plan_init(&plan);
    iso_string_printf(out, "with %d ranks, all their weights, moments and gradients:", count);
    for (plan.zero = 0; plan.zero <= 3; plan.zero++)
      iso_string_printf(out, "%s parallel.zero %d %.3f MB", plan.zero ? "," : "", plan.zero,
                        (double)iso_ranks_host_bytes(&plan) * 1e-6);
    iso_string_printf(out, "\n");
  }
}

void iso_ranks_print(const iso_ranks *ranks, int threads) {
  const iso_ranks_plan *plan = iso_ranks_plan_get(ranks);
  const int64_t least = plan->workers / plan->count, most = (plan->workers + plan->count - 1) / plan->count;
  char where[160] = "of this host";
  if (plan->world)
    (void)snprintf(where, sizeof where, "of %s on %d host%s", iso_world_launcher(plan->world), plan->hosts,
                   iso_plural(plan->hosts));
  printf("# %d rank%s %s, %d thread%s each; %.1f MB of memory are shared; %lld virtual workers, ", plan->count,
         iso_plural(plan->count), where, threads, iso_plural(threads),
         (double)(iso_ranks_common_bytes(plan) + (size_t)plan->mates * iso_ranks_own_bytes(plan)) * 1e-6,
         (long long)plan->workers);
  if (least == most)
    printf("%lld a rank\n", (long long)most);
  else
    printf("%lld or %lld a rank: a step takes as long as on %lld ranks\n", (long long)least, (long long)most,
           (long long)((plan->workers + most - 1) / most));
  if (plan->world) iso_ranks_order_print(plan->world);
  print_zero(plan);
}
