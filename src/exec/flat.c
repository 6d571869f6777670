/* SPDX-License-Identifier: Apache-2.0
 *
 * The flat state: master weights, moments, gradient sums and the reduced gradient as flat arrays in one slab, in the
 * order of the parameters. A snapshot file is a header and regions of this memory.
 */
#include <string.h>

#include "exec/exec.h"

/* Arrays begin on 4 KiB borders, so that storage can read them directly. */
static size_t padded(size_t bytes) {
  return (bytes + 4095) & ~(size_t)4095;
}

int64_t iso_leaf_buffers(int64_t first, int64_t count) {
  int64_t depth = 0, most = 0;
  for (int64_t leaf = first; leaf < first + count; leaf++) {
    if (++depth > most) most = depth;
    for (int64_t start = leaf, size = 1; (start & size) && start - size >= first; start -= size, size *= 2) depth--;
  }
  return most;
}

static int64_t gradient_buffers(const iso_flat_options *options) {
  if (options->shared) return options->shared->buffers;
  return iso_leaf_buffers(0, options->virtual_workers);
}

static size_t block_count(const iso_flat_options *options) {
  return (size_t)((options->elements + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK);
}

/* Walks the arrays of the slab; with `flat` it also hands out their addresses. */
static size_t lay_out(const iso_flat_options *options, iso_flat *flat) {
  const size_t elements = (size_t)options->elements;
  const iso_flat_shared *shared = options->shared;
  char *slab = flat ? flat->slab : NULL;
  size_t used = 0;
#define TAKE(field, size)                                                                                              \
  do {                                                                                                                 \
    if (flat) flat->field = (void *)(slab + used);                                                                     \
    used += padded(size);                                                                                              \
  } while (0)
  if (!shared || !shared->master) TAKE(master, elements * sizeof(float));
  if (options->compute == ISO_BF16 && (!shared || !shared->weights)) TAKE(weights, elements * sizeof(iso_bf16));
  if (options->train && (!shared || !shared->moment1)) {
    TAKE(moment1, elements * sizeof(float));
    TAKE(moment2, elements * sizeof(float));
  }
  if (options->train && !options->shared) {
    if (options->virtual_workers > 0) TAKE(gradients, elements * sizeof(float) * (size_t)gradient_buffers(options));
    TAKE(reductions[0], elements * iso_dtype_size(options->gradient));
    if (options->log) TAKE(reductions[1], elements * iso_dtype_size(options->gradient));
    TAKE(squares, block_count(options) * sizeof(double));
  }
#undef TAKE
  return used;
}

size_t iso_flat_bytes(const iso_flat_options *options) {
  return lay_out(options, NULL);
}

static void use_shared(iso_flat *flat, const iso_flat_shared *shared) {
  flat->gradients = shared->gradients;
  flat->reductions[0] = shared->reductions[0];
  flat->reductions[1] = shared->reductions[1];
  flat->squares = shared->squares;
  flat->own_begin = shared->own_begin;
  flat->own_end = shared->own_end;
  if (shared->master) flat->master = shared->master;
  if (shared->moment1) flat->moment1 = shared->moment1;
  if (shared->moment2) flat->moment2 = shared->moment2;
  if (shared->weights) flat->weights = shared->weights;
}

iso_status iso_flat_init(iso_flat *flat, const iso_flat_options *options) {
  memset(flat, 0, sizeof *flat);
  flat->options = *options;
  flat->slab_bytes = iso_flat_bytes(options);
  flat->slab = iso_slab_alloc(flat->slab_bytes, "weights, moments and gradients");
  if (!flat->slab) return ISO_ERR_MEMORY;
  flat->buffers = options->train ? gradient_buffers(options) : 0;
  lay_out(options, flat);
  flat->own_end = options->elements;
  if (options->shared) use_shared(flat, options->shared);
  flat->reduced = flat->reductions[0];
  return ISO_OK;
}

void iso_flat_reduction_use(iso_flat *flat, int64_t step) {
  flat->reduced = flat->reductions[flat->reductions[1] ? step & 1 : 0];
}

void iso_flat_fini(iso_flat *flat) {
  iso_slab_free(flat->slab, flat->slab_bytes);
  memset(flat, 0, sizeof *flat);
}

typedef struct refresh_task {
  const iso_device *device;
  iso_cast_args args;
} refresh_task;

static void refresh_thread(void *argument, int thread) {
  const refresh_task *task = argument;
  const iso_worker worker = {thread, iso_device_threads(task->device), iso_device_team(task->device), NULL};
  iso_device_kernels(task->device)->cast(&task->args, &worker);
}

void iso_flat_refresh(iso_flat *flat, const iso_device *device) {
  if (!flat->weights) return;
  const int64_t elements = flat->options.elements;
  refresh_task task = {
      device, {{flat->master, 1, elements, elements, ISO_F32}, {flat->weights, 1, elements, elements, ISO_BF16}}};
  iso_team_run(iso_device_team(device), refresh_thread, &task);
}
