/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, forward: tiles with online softmax (Dao et al. 2022) over a tier's tile set.
 *
 * A task is one tile of query rows of one head. It walks the key blocks that its rows can see: scores = Q K^T into
 * scratch, scores to probabilities under a running maximum, output accumulators rescaled, += P V. Panels of the block
 * that no row sees are not computed. K and V of the present kv head are packed once per thread, as far as its tiles
 * have come, and serve all query heads of the group.
 *
 * Invariants
 *  1. A task's result depends on nothing but its rows and keys, so dealing tasks to threads decides no bits.
 *  2. Keys outside a row's sight have probability exactly zero. In the blocks its tile does read, an unseen V that is
 *     infinite or NaN still spoils the row (0 * inf).
 */
#include "kernels/tile.h"

#include <math.h>
#include <string.h>

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t round_up(int64_t x, int64_t grain) {
  return (x + grain - 1) / grain * grain;
}

/* One thread's scratch. Sizes hold for every tier: units of 4 bytes, steps of 1. */
typedef struct forward_scratch {
  char *keys, *values,
      *query;             /* packed: [panel of keys][D units][cols], [block][panel of D][units][cols], left panel */
  float *scores, *output; /* [rows][block], [rows][padded D] */
  void *probabilities;    /* [rows][ISO_SCORE_UNITS] */
  int32_t *segments;      /* of the block's keys */
} forward_scratch;

static char *carve(size_t *at, void *base, int64_t bytes) {
  char *area = base ? (char *)base + *at : NULL;
  *at += (size_t)round_up(bytes, 64);
  return area;
}

/* Lays the areas out from `base`; returns the bytes. */
static size_t plan_forward(forward_scratch *scratch, void *base, int64_t keys, int64_t head_dim) {
  size_t at = 0;
  int64_t padded_keys = round_up(keys, ISO_SCORE_COLS_MAX), padded = round_up(head_dim, ISO_TILE_COLS_MAX);
  scratch->keys = carve(&at, base, padded_keys * head_dim * 4);
  scratch->values = carve(&at, base, padded_keys * padded * 4);
  scratch->query = carve(&at, base, ISO_TILE_ROWS_MAX * head_dim * 4);
  scratch->scores = (float *)(void *)carve(&at, base, ISO_TILE_ROWS_MAX * ISO_SCORE_COLS_MAX * 4);
  scratch->output = (float *)(void *)carve(&at, base, ISO_TILE_ROWS_MAX * padded * 4);
  scratch->probabilities = carve(&at, base, ISO_TILE_ROWS_MAX * ISO_SCORE_UNITS * 4);
  scratch->segments = (int32_t *)(void *)carve(&at, base, ISO_SCORE_COLS_MAX * 4);
  return at;
}

size_t iso_attention_scratch(int64_t queries, int64_t keys, int64_t head_dim, int threads) {
  forward_scratch scratch;
  size_t vector = plan_forward(&scratch, NULL, keys, head_dim);
  size_t scalar = (size_t)keys * sizeof(float);
  return (vector > scalar ? vector : scalar) * (size_t)threads;
}

typedef struct forward_job {
  const iso_attention_set *set;
  const iso_attention_args *args;
  forward_scratch scratch;
  int64_t block;         /* keys in a block */
  int64_t padded;        /* D, rounded up to whole panels */
  int64_t units;         /* of D */
  int64_t batch, kv;     /* whose K and V are packed */
  int64_t packed, ahead; /* blocks [packed, ahead) of them */
} forward_job;

static const void *element(const iso_matrix *m, int64_t row, int64_t col) {
  return (const char *)m->data + (size_t)(row * m->ld + col) * iso_dtype_size(m->dtype);
}

/* Keys [*first, *last) that query t may see by order and window. */
static void key_range(const iso_attention_args *args, int64_t t, int64_t *first, int64_t *last) {
  *last = min_of(args->offset + t + 1, args->keys);
  *first = args->window > 0 ? max_of(args->offset + t - args->window + 1, 0) : 0;
  *first = min_of(*first, *last); /* none: an empty range within the keys */
}

static void pack_block(forward_job *job, int64_t index) {
  const iso_attention_args *args = job->args;
  const iso_tile_set *tiles = job->set->tiles;
  int64_t first = index * job->block, count = min_of(args->keys - first, job->block);
  int64_t row = job->batch * args->keys + first, col = job->kv * args->head_dim, width = args->head_dim;
  for (int64_t s = 0; s < count; s += tiles->cols)
    tiles->pack(job->scratch.keys + (first + s) * job->units * 4, tiles->cols, element(&args->k, row + s, col),
                args->k.ld, min_of(count - s, tiles->cols), width, false);
  char *values = job->scratch.values + index * ISO_SCORE_UNITS * job->padded * 4;
  for (int64_t d = 0; d < width; d += tiles->cols)
    tiles->pack(values + d * ISO_SCORE_UNITS * 4, tiles->cols, element(&args->v, row, col + d), args->v.ld,
                min_of(width - d, tiles->cols), count, true);
}

/* Makes blocks [begin, end) of the kv head ready. */
static void prepare_keys(forward_job *job, int64_t batch, int64_t kv, int64_t begin, int64_t end) {
  if (job->batch != batch || job->kv != kv || begin < job->packed || begin > job->ahead) {
    job->batch = batch;
    job->kv = kv;
    job->packed = job->ahead = begin;
  }
  for (; job->ahead < end; job->ahead++) pack_block(job, job->ahead);
}

/* Sets the tile's segments for `count` keys from `first` on. False: no row sees any of them. */
static bool set_segments(forward_job *job, iso_score_tile *tile, int64_t first, int64_t count) {
  tile->segments = NULL;
  if (!job->args->segments) return true;
  const int32_t *keys = job->args->segments + job->batch * job->args->keys + first;
  int32_t low = INT32_MAX, high = INT32_MIN, row_low = INT32_MAX, row_high = INT32_MIN;
  for (int64_t s = 0; s < count; s++) {
    low = keys[s] < low ? keys[s] : low;
    high = keys[s] > high ? keys[s] : high;
  }
  for (int r = 0; r < tile->rows; r++) {
    row_low = tile->segment[r] < row_low ? tile->segment[r] : row_low;
    row_high = tile->segment[r] > row_high ? tile->segment[r] : row_high;
  }
  if (high < row_low || low > row_high) return false;
  if (low == high && row_low == row_high) return true;
  memcpy(job->scratch.segments, keys, (size_t)count * sizeof(int32_t));
  for (int64_t s = count; s < job->block; s++) job->scratch.segments[s] = 0; /* beyond `last` of every row */
  tile->segments = job->scratch.segments;
  return true;
}

/* One key block for one tile of rows; keys [low, high) are those that some row sees. Returns whether any was. */
static bool visit_block(forward_job *job, iso_score_tile *tile, iso_softmax_state *state, int64_t index, int64_t t,
                        int64_t low, int64_t high, bool started) {
  const iso_tile_set *tiles = job->set->tiles;
  int64_t base = index * job->block;
  int64_t begin = max_of(low - base, 0), end = min_of(high - base, job->block);
  if (!set_segments(job, tile, base, min_of(job->args->keys - base, job->block))) return false;
  tile->begin = (int)(begin / tiles->cols * tiles->cols);
  tile->end = (int)round_up(end, tiles->cols);
  for (int r = 0; r < tile->rows; r++) {
    int64_t first, last;
    key_range(job->args, t + r, &first, &last);
    tile->first[r] = (int)min_of(max_of(first - base, 0), job->block);
    tile->last[r] = (int)min_of(max_of(last - base, 0), job->block);
  }
  iso_tile_out out = {.sums_ld = job->block, .keep = true, .count_rows = tile->rows, .count_cols = tiles->cols};
  for (int c = tile->begin; c < tile->end; c += tiles->cols) {
    out.sums = job->scratch.scores + c;
    tiles->multiply(job->scratch.query, job->scratch.keys + (base + c) * job->units * 4, job->units, &out);
  }
  job->set->softmax(tile, state);
  out.sums_ld = job->padded;
  out.load = started;
  for (int r = 0; started && r < tile->rows; r++)
    if (state->factor[r] != 1.0f) job->set->scale(job->scratch.output + r * job->padded, state->factor[r], job->padded);
  int64_t skip = tile->begin / tiles->step, units = (end - tile->begin + tiles->step - 1) / tiles->step;
  const char *values = job->scratch.values + index * ISO_SCORE_UNITS * job->padded * 4;
  for (int64_t d = 0; d < job->padded; d += tiles->cols) {
    out.sums = job->scratch.output + d;
    tiles->multiply_rows((char *)job->scratch.probabilities + skip * 4,
                         values + (d * ISO_SCORE_UNITS + skip * tiles->cols) * 4, units, &out);
  }
  return true;
}

static void store_tile(const forward_job *job, const iso_softmax_state *state, int64_t row, int64_t head, int rows,
                       bool started) {
  const iso_attention_args *args = job->args;
  if (!started) memset(job->scratch.output, 0, (size_t)(rows * job->padded) * sizeof(float));
  for (int r = 0; r < rows; r++) {
    /* a row that saw nothing is zeros times one */
    float factor = state->sum[r] == 0.0f ? 1.0f : 1.0f / state->sum[r];
    void *target =
        (char *)args->o.data + (size_t)((row + r) * args->o.ld + head * args->head_dim) * iso_dtype_size(args->o.dtype);
    job->set->store(target, args->o.dtype, job->scratch.output + r * job->padded, factor, args->head_dim);
  }
  if (!args->lse) return;
  float lse[16];
  job->set->finish(state, lse);
  for (int r = 0; r < rows; r++) args->lse[(row + r) * args->heads + head] = lse[r];
}

static void attend_tile(forward_job *job, int64_t batch, int64_t head, int64_t t, int rows) {
  const iso_attention_args *args = job->args;
  const iso_tile_set *tiles = job->set->tiles;
  int64_t row = batch * args->queries + t, low, high, unused;
  key_range(args, t, &low, &unused);
  key_range(args, t + rows - 1, &unused, &high);
  prepare_keys(job, batch, head / (args->heads / args->kv_heads), low / job->block,
               (high + job->block - 1) / job->block);
  tiles->pack(job->scratch.query, tiles->rows, element(&args->q, row, head * args->head_dim), args->q.ld, rows,
              args->head_dim, false);
  iso_score_tile tile = {
      .scores = job->scratch.scores, .probabilities = job->scratch.probabilities, .rows = rows, .scale = args->scale};
  iso_softmax_state state = {0};
  for (int r = 0; r < 16; r++) state.high[r] = -INFINITY;
  for (int r = 0; args->segments && r < rows; r++) tile.segment[r] = args->segments[row + r];
  bool started = false;
  for (int64_t index = low / job->block; index * job->block < high; index++)
    started |= visit_block(job, &tile, &state, index, t, low, high, started);
  store_tile(job, &state, row, head, rows, started);
}

/* Work of the tile that begins at query t, in keys. */
static int64_t tile_cost(const iso_attention_args *args, int64_t t, int64_t rows) {
  int64_t low, high, unused;
  key_range(args, t, &low, &unused);
  key_range(args, t + rows - 1, &unused, &high);
  return max_of(high - low, 0) + 16;
}

void iso_attention_run(const iso_attention_set *set, const iso_attention_args *args, const iso_worker *worker) {
  forward_job job = {.set = set, .args = args, .batch = -1};
  size_t bytes = iso_attention_scratch(args->queries, args->keys, args->head_dim, 1);
  plan_forward(&job.scratch, (char *)worker->scratch + bytes * (size_t)worker->thread, args->keys, args->head_dim);
  const iso_tile_set *tiles = set->tiles;
  job.block = ISO_SCORE_UNITS * tiles->step;
  job.padded = round_up(args->head_dim, tiles->cols);
  job.units = (args->head_dim + tiles->step - 1) / tiles->step;
  int64_t head_cost = 0;
  for (int64_t t = 0; t < args->queries; t += tiles->rows)
    head_cost += tile_cost(args, t, min_of(args->queries - t, tiles->rows));
  /* A thread takes the tiles whose beginning, in units of cost, falls in its share of the whole. */
  int64_t heads = args->batch * args->heads;
  double total = (double)head_cost * (double)heads;
  int64_t begin = (int64_t)(total * worker->thread / worker->threads);
  int64_t end =
      worker->thread + 1 == worker->threads ? INT64_MAX : (int64_t)(total * (worker->thread + 1) / worker->threads);
  for (int64_t head = head_cost > 0 ? begin / head_cost : heads; head < heads && head * head_cost < end; head++) {
    int64_t at = head * head_cost;
    for (int64_t t = 0; t < args->queries; t += tiles->rows) {
      int64_t rows = min_of(args->queries - t, tiles->rows);
      if (at >= begin && at < end) attend_tile(&job, head / args->heads, head % args->heads, t, (int)rows);
      at += tile_cost(args, t, rows);
    }
  }
}
