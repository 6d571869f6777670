/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, backward: probabilities are formed again from the saved log-sum-exp, tile by tile, transposed: rows are
 * keys, columns queries. With S the scaled scores and P = exp(S - lse):
 *   dV += P^T dO    dP = dO V^T    delta = rowsum(dO * O)    dS = P * (dP - delta) * scale    dK += dS^T Q    dQ += dS
 * K P^T and dS^T come out row by row as the left operands of dV and dK; only dQ needs dS packed across.
 *
 * A task is one (sequence, kv head) with all its query heads in order: its dK, dV and dQ are summed in float32 scratch,
 * heads ascending, then key blocks, then query blocks. Where there are tasks enough, each has one thread. Where not,
 * all threads share each task: key blocks are dealt in turn. A block's dK and dV belong to its thread; to dQ of a query
 * block it adds when the key block before it has: both go through the queries in the same direction, and the earlier
 * block has a start of one, so that it seldom waits.
 *
 * Invariants
 *  1. The order of every sum depends on shapes alone, also where threads share a task.
 *  2. Pairs that do not see each other contribute exactly zero (but 0 * inf in a tile that is read is NaN).
 *  3. With bfloat16 pairs, P and dS are rounded to bfloat16 before the second products.
 */
#include "kernels/tile.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* Keys of a block: the largest multiple of the tile's rows up to this. */
enum { KEY_BLOCK_MAX = 112 };

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t round_up(int64_t x, int64_t grain) {
  return (x + grain - 1) / grain * grain;
}

/* One thread's scratch; see plan_grad for the shapes. Sizes hold for every tier. */
typedef struct grad_scratch {
  char *key_lines, *value_lines;  /* left panels: keys x D */
  char *key_rows;                 /* right panels by key block: D x keys, for dQ */
  char *query_lines, *dout_lines; /* right panels: queries x D */
  char *query_rows, *dout_rows;   /* right panels by query block: D x queries, for dK and dV */
  float *dk, *dv;                 /* [T][padded D] */
  float *dq;                      /* [query block][dq_rows][padded D] */
  float *scores, *products;       /* [rows][block] */
  char *probabilities;            /* [rows][ISO_SCORE_UNITS] */
  char *gradients;                /* dS^T: [key block][ISO_SCORE_UNITS] */
  char *packed_gradients;         /* dS: left panels of queries x key block */
  float *lse, *delta;             /* [T], of the present head */
  int32_t *segments;              /* [T], padded */
} grad_scratch;

static void *carve(size_t *at, void *base, int64_t bytes) {
  void *area = base ? (char *)base + *at : NULL;
  *at += (size_t)round_up(bytes, 64);
  return area;
}

/* Lays the areas out from `base`; returns the bytes. */
static size_t plan_grad(grad_scratch *scratch, void *base, int64_t queries, int64_t head_dim) {
  size_t at = 0;
  int64_t length = round_up(queries, ISO_SCORE_COLS_MAX) + KEY_BLOCK_MAX; /* whole blocks of keys and of queries */
  int64_t padded = round_up(head_dim, ISO_TILE_COLS_MAX);
  scratch->key_lines = carve(&at, base, length * head_dim * 4);
  scratch->value_lines = carve(&at, base, length * head_dim * 4);
  scratch->key_rows = carve(&at, base, length * padded * 4);
  scratch->query_lines = carve(&at, base, length * head_dim * 4);
  scratch->dout_lines = carve(&at, base, length * head_dim * 4);
  scratch->query_rows = carve(&at, base, length * padded * 4);
  scratch->dout_rows = carve(&at, base, length * padded * 4);
  scratch->dk = carve(&at, base, length * padded * 4);
  scratch->dv = carve(&at, base, length * padded * 4);
  scratch->dq = carve(&at, base,
                      round_up(queries, ISO_SCORE_COLS_MAX) / ISO_SCORE_UNITS * (ISO_SCORE_UNITS + ISO_TILE_ROWS_MAX) *
                          padded * 4);
  scratch->scores = carve(&at, base, ISO_TILE_ROWS_MAX * ISO_SCORE_COLS_MAX * 4);
  scratch->products = carve(&at, base, ISO_TILE_ROWS_MAX * ISO_SCORE_COLS_MAX * 4);
  scratch->probabilities = carve(&at, base, ISO_TILE_ROWS_MAX * ISO_SCORE_UNITS * 4);
  scratch->gradients = carve(&at, base, KEY_BLOCK_MAX * ISO_SCORE_UNITS * 4);
  scratch->packed_gradients = carve(&at, base, (ISO_SCORE_COLS_MAX + ISO_TILE_ROWS_MAX) * KEY_BLOCK_MAX * 4);
  scratch->lse = carve(&at, base, length * 4);
  scratch->delta = carve(&at, base, length * 4);
  scratch->segments = carve(&at, base, length * 4);
  return at;
}

size_t iso_attention_grad_scratch(int64_t batch, int64_t queries, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  int threads) {
  grad_scratch scratch;
  return plan_grad(&scratch, NULL, queries, head_dim) * (size_t)threads;
}

/* Query blocks of the present head to which a key block has added, those before its first one included. */
typedef struct grad_progress {
  _Alignas(64) _Atomic int64_t done;
} grad_progress;

typedef struct grad_job {
  const iso_attention_set *set;
  const iso_attention_grad_args *args;
  grad_scratch scratch;
  int64_t length;                    /* T */
  int64_t query_block;               /* columns of a score tile */
  int64_t key_block;                 /* a multiple of tile rows */
  int64_t dq_rows;                   /* a query block, rounded up to whole tiles */
  int64_t padded;                    /* D, rounded up to whole panels */
  int64_t units;                     /* of D */
  int64_t row;                       /* first token of the sequence */
  int64_t segment_low, segment_high; /* of the present query block */
  iso_team *team;                    /* of the threads that share a task */
  int64_t sharers, share;            /* how many, and which of them this is; 1, 0: no other */
  grad_progress *progress;           /* by key block; NULL without sharers */
} grad_job;

/* True if the index-th piece of the task's work is this thread's. */
static bool is_mine(const grad_job *job, int64_t index) {
  return index % job->sharers == job->share;
}

static void meet(const grad_job *job) {
  if (job->sharers > 1) iso_team_barrier(job->team);
}

/* Until the key block has added to the query block, and what it wrote can be read. */
static void wait_for(grad_progress *progress, int64_t query_index) {
  enum { LOOKS = 250 };
  for (int i = 0; atomic_load_explicit(&progress->done, memory_order_acquire) <= query_index; i++) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (i % LOOKS == LOOKS - 1) sched_yield();
  }
}

static const void *element(const iso_matrix *m, int64_t row, int64_t col) {
  return (const char *)m->data + (size_t)(row * m->ld + col) * iso_dtype_size(m->dtype);
}

/* Panels of `width` tokens, D deep, over the whole sequence. */
static void pack_lines(const grad_job *job, char *panels, int width, const iso_matrix *m, int64_t col) {
  for (int64_t t = 0; t < job->length; t += width)
    if (is_mine(job, t / width))
      job->set->tiles->pack(panels + t * job->units * 4, width, element(m, job->row + t, col), m->ld,
                            min_of(job->length - t, width), job->args->forward.head_dim, false);
}

/* For each block of `block` tokens, panels of D, as deep as the block; `stride` units from block to block. */
static void pack_rows(const grad_job *job, char *panels, int64_t block, const iso_matrix *m, int64_t col) {
  const iso_tile_set *tiles = job->set->tiles;
  int64_t depth = (block + tiles->step - 1) / tiles->step, width = job->args->forward.head_dim;
  for (int64_t t = 0; t < job->length; t += block)
    for (int64_t d = 0; d < width && is_mine(job, t / block); d += tiles->cols)
      tiles->pack(panels + (t / block * depth * job->padded + d * depth) * 4, tiles->cols,
                  element(m, job->row + t, col + d), m->ld, min_of(width - d, tiles->cols),
                  min_of(job->length - t, block), true);
}

/* Queries [*first, *last) that see key s by order and window. */
static void query_range(const iso_attention_args *args, int64_t s, int64_t *first, int64_t *last) {
  *first = s;
  *last = args->window > 0 ? min_of(s + args->window, args->queries) : args->queries;
}

static void segment_range(const int32_t *segments, int64_t count, int64_t *low, int64_t *high) {
  *low = INT64_MAX;
  *high = INT64_MIN;
  for (int64_t i = 0; i < count; i++) {
    *low = min_of(*low, segments[i]);
    *high = max_of(*high, segments[i]);
  }
}

/* Prepares the tile of keys from s on against the query block at q. False: none of its pairs see each other. */
static bool set_tile(const grad_job *job, iso_score_tile *tile, int64_t s, int64_t q) {
  const iso_attention_args *args = &job->args->forward;
  int cols = job->set->tiles->cols;
  int64_t low, high, unused, block_end = min_of(q + job->query_block, job->length);
  query_range(args, s, &low, &unused);
  query_range(args, s + tile->rows - 1, &unused, &high);
  low = max_of(low, q);
  high = min_of(high, block_end);
  if (low >= high) return false;
  tile->begin = (int)((low - q) / cols * cols);
  tile->end = (int)round_up(high - q, cols);
  for (int r = 0; r < tile->rows; r++) {
    int64_t first, last;
    query_range(args, s + r, &first, &last);
    tile->first[r] = (int)min_of(max_of(first - q, 0), job->query_block);
    tile->last[r] = (int)min_of(max_of(last - q, 0), job->query_block);
  }
  tile->segments = NULL;
  if (!args->segments) return true;
  int64_t key_low, key_high;
  segment_range(job->scratch.segments + s, tile->rows, &key_low, &key_high);
  if (key_high < job->segment_low || key_low > job->segment_high) return false;
  if (key_low == key_high && job->segment_low == job->segment_high) return true;
  tile->segments = job->scratch.segments + q;
  memcpy(tile->segment, job->scratch.segments + s, (size_t)tile->rows * sizeof(int32_t));
  return true;
}

/* target += rows of units (probabilities or gradients of the tile) times the block's rows of Q or dO. */
static void add_products(const grad_job *job, const iso_score_tile *tile, float *target, const char *left,
                         const char *panels, int64_t q, int64_t end) {
  const iso_tile_set *tiles = job->set->tiles;
  int64_t skip = tile->begin / tiles->step, units = (end - tile->begin + tiles->step - 1) / tiles->step;
  iso_tile_out out = {
      .sums_ld = job->padded, .load = true, .keep = true, .count_rows = tile->rows, .count_cols = tiles->cols};
  const char *block = panels + q / job->query_block * ISO_SCORE_UNITS * job->padded * 4;
  for (int64_t d = 0; d < job->padded; d += tiles->cols) {
    out.sums = target + d;
    tiles->multiply_rows(left + skip * 4, block + (d * ISO_SCORE_UNITS + skip * tiles->cols) * 4, units, &out);
  }
}

/* One tile of keys against one block of queries: adds to dK and dV, leaves its rows of dS^T. False: all of them zero.
 */
static bool visit_tile(const grad_job *job, int64_t s, int rows, int64_t q, char *gradients) {
  const iso_tile_set *tiles = job->set->tiles;
  const grad_scratch *scratch = &job->scratch;
  iso_score_tile tile = {.scores = scratch->scores,
                         .probabilities = scratch->probabilities,
                         .rows = rows,
                         .scale = job->args->forward.scale};
  bool seen = set_tile(job, &tile, s, q);
  if (!seen || tile.begin > 0 || tile.end < job->query_block)
    memset(gradients, 0, (size_t)(rows * ISO_SCORE_UNITS) * 4);
  if (!seen) return false;
  iso_tile_out out = {.sums_ld = job->query_block, .keep = true, .count_rows = rows, .count_cols = tiles->cols};
  for (int c = tile.begin; c < tile.end; c += tiles->cols) {
    int64_t at = (q + c) * job->units * 4;
    out.sums = scratch->scores + c;
    tiles->multiply(scratch->key_lines + s * job->units * 4, scratch->query_lines + at, job->units, &out);
    out.sums = scratch->products + c;
    tiles->multiply(scratch->value_lines + s * job->units * 4, scratch->dout_lines + at, job->units, &out);
  }
  job->set->softmax_grad(&tile, scratch->products, scratch->lse + q, scratch->delta + q, gradients);
  int64_t end = min_of(tile.end, job->length - q);
  add_products(job, &tile, scratch->dv + s * job->padded, scratch->probabilities, scratch->dout_rows, q, end);
  add_products(job, &tile, scratch->dk + s * job->padded, gradients, scratch->query_rows, q, end);
  return true;
}

/* dQ of a query block += dS K, over one key block of `keys` keys. */
static void add_to_queries(const grad_job *job, int64_t s, int64_t keys, int64_t q) {
  const iso_tile_set *tiles = job->set->tiles;
  const grad_scratch *scratch = &job->scratch;
  int64_t queries = min_of(job->query_block, job->length - q);
  int64_t depth = (job->key_block + tiles->step - 1) / tiles->step;
  const char *panels = scratch->key_rows + s / job->key_block * depth * job->padded * 4;
  iso_tile_out out = {.sums_ld = job->padded, .load = true, .keep = true, .count_cols = tiles->cols};
  for (int64_t t = 0; t < queries; t += tiles->rows) {
    out.count_rows = (int)min_of(queries - t, tiles->rows);
    int64_t seen = min_of(keys, q + t + out.count_rows - s); /* later keys than the tile's last query are unseen */
    if (seen <= 0) continue;
    job->set->pack_scores(scratch->packed_gradients, tiles->rows, scratch->gradients + t * 4 / tiles->step,
                          job->query_block, out.count_rows, seen, true);
    for (int64_t d = 0; d < job->padded; d += tiles->cols) {
      out.sums = scratch->dq + (q / job->query_block * job->dq_rows + t) * job->padded + d;
      tiles->multiply(scratch->packed_gradients, panels + d * depth * 4, (seen + tiles->step - 1) / tiles->step, &out);
    }
  }
}

/* One key block against the queries that see it; `index`: of the block. */
static void block_grad(grad_job *job, int64_t s, int64_t index) {
  const iso_attention_grad_args *args = job->args;
  const grad_scratch *scratch = &job->scratch;
  const int64_t keys = min_of(job->key_block, job->length - s), rows = job->set->tiles->rows;
  int64_t first, last, unused;
  query_range(&args->forward, s, &first, &unused);
  query_range(&args->forward, s + keys - 1, &unused, &last);
  for (int64_t q = first / job->query_block * job->query_block; q < last; q += job->query_block) {
    if (args->forward.segments)
      segment_range(scratch->segments + q, min_of(job->query_block, job->length - q), &job->segment_low,
                    &job->segment_high);
    bool any = false;
    for (int64_t i = 0; i < keys; i += rows)
      any |= visit_tile(job, s + i, (int)min_of(keys - i, rows), q, scratch->gradients + i * ISO_SCORE_UNITS * 4);
    if (job->progress && index > 0) wait_for(&job->progress[index - 1], q / job->query_block);
    if (any) add_to_queries(job, s, keys, q);
    if (job->progress)
      atomic_store_explicit(&job->progress[index].done, q / job->query_block + 1, memory_order_release);
  }
  if (job->progress) atomic_store_explicit(&job->progress[index].done, INT64_MAX, memory_order_release);
}

/* What the query blocks of a head begin with: lse, delta and zeros in dQ. */
static void prepare_queries(const grad_job *job, int64_t head) {
  const iso_attention_grad_args *args = job->args;
  const grad_scratch *scratch = &job->scratch;
  const int64_t width = args->forward.head_dim, col = head * width;
  for (int64_t q = 0; q < job->length; q += job->query_block) {
    if (!is_mine(job, q / job->query_block)) continue;
    for (int64_t t = q; t < q + job->query_block; t++) {
      bool inside = t < job->length;
      scratch->lse[t] = inside ? args->forward.lse[(job->row + t) * args->forward.heads + head] : 0.0f;
      scratch->delta[t] = inside ? job->set->dot(element(&args->dout, job->row + t, col),
                                                 element(&args->forward.o, job->row + t, col), args->dout.dtype, width)
                                 : 0.0f;
    }
    const int64_t block = job->dq_rows * job->padded;
    memset(scratch->dq + q / job->query_block * block, 0, (size_t)block * sizeof(float));
  }
}

/* One query head: adds to the kv head's dK and dV, makes dQ. */
static void head_grad(grad_job *job, int64_t head) {
  const iso_attention_grad_args *args = job->args;
  const iso_tile_set *tiles = job->set->tiles;
  const grad_scratch *scratch = &job->scratch;
  const int64_t col = head * args->forward.head_dim;
  pack_lines(job, scratch->query_lines, tiles->cols, &args->forward.q, col);
  pack_lines(job, scratch->dout_lines, tiles->cols, &args->dout, col);
  pack_rows(job, scratch->query_rows, job->query_block, &args->forward.q, col);
  pack_rows(job, scratch->dout_rows, job->query_block, &args->dout, col);
  prepare_queries(job, head);
  for (int64_t s = 0; s < job->length && job->progress; s += job->key_block)
    if (is_mine(job, s / job->key_block))
      atomic_store_explicit(&job->progress[s / job->key_block].done, 0, memory_order_relaxed);
  meet(job);
  for (int64_t s = 0; s < job->length; s += job->key_block)
    if (is_mine(job, s / job->key_block)) block_grad(job, s, s / job->key_block);
  meet(job);
}

/* Sums to columns col .. col + D - 1 of the sequence's rows; `block` tokens, which are one piece of the work, take
 * `block_rows` rows of sums. */
static void store_rows(const grad_job *job, const iso_matrix *m, const float *sums, int64_t block, int64_t block_rows,
                       int64_t col) {
  for (int64_t t = 0; t < job->length; t++) {
    if (!is_mine(job, t / block)) continue;
    char *target = (char *)m->data + (size_t)((job->row + t) * m->ld + col) * iso_dtype_size(m->dtype);
    job->set->store(target, m->dtype, sums + (t / block * block_rows + t % block) * job->padded, 1.0f,
                    job->args->forward.head_dim);
  }
}

/* One task, or this thread's share of it. Key blocks and query blocks have one thread each from zero to storing. */
static void group_grad(grad_job *job, int64_t batch, int64_t kv) {
  const iso_attention_grad_args *args = job->args;
  const iso_tile_set *tiles = job->set->tiles;
  const grad_scratch *scratch = &job->scratch;
  int64_t group = args->forward.heads / args->forward.kv_heads, col = kv * args->forward.head_dim;
  job->row = batch * job->length;
  for (int64_t s = 0; s < job->length; s += job->key_block) {
    if (!is_mine(job, s / job->key_block)) continue;
    const int64_t rows = round_up(min_of(job->key_block, job->length - s), tiles->rows);
    memset(scratch->dk + s * job->padded, 0, (size_t)(rows * job->padded) * sizeof(float));
    memset(scratch->dv + s * job->padded, 0, (size_t)(rows * job->padded) * sizeof(float));
  }
  pack_lines(job, scratch->key_lines, tiles->rows, &args->forward.k, col);
  pack_lines(job, scratch->value_lines, tiles->rows, &args->forward.v, col);
  pack_rows(job, scratch->key_rows, job->key_block, &args->forward.k, col);
  if (args->forward.segments && job->share == 0) {
    int64_t padded_length = round_up(job->length, job->query_block);
    memcpy(scratch->segments, args->forward.segments + job->row, (size_t)job->length * sizeof(int32_t));
    memset(scratch->segments + job->length, 0, (size_t)(padded_length - job->length) * sizeof(int32_t));
  }
  for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
    head_grad(job, head);
    store_rows(job, &args->dq, scratch->dq, job->query_block, job->dq_rows, head * args->forward.head_dim);
  }
  store_rows(job, &args->dk, scratch->dk, job->key_block, job->key_block, col);
  store_rows(job, &args->dv, scratch->dv, job->key_block, job->key_block, col);
}

/* Whether sharing each task among all threads takes less time than dealing whole ones; changes no bits. In units of one
 * key block against one query block; a shared head takes the pace of its longest row of them at least, and as much as
 * that again to start and to end (measured: 1.2 times as fast on two threads at T = 512, 1.4 at 1,024, 1.7 at 2,048).
 */
static bool sharing_pays(const grad_job *job, int64_t tasks, int64_t threads) {
  const int64_t keys = (job->length + job->key_block - 1) / job->key_block;
  const int64_t queries = (job->length + job->query_block - 1) / job->query_block, cells = (keys + 1) * queries / 2;
  const int64_t dealt = (tasks + threads - 1) / threads * cells;
  return tasks * (max_of(cells / threads, queries) + queries) * 11 < dealt * 10;
}

/* Threads that share work in the first one's scratch, but for what they use alone; the second one's dK, unused then,
 * holds the progress. */
static void share_scratch(grad_job *job, const iso_worker *worker, size_t bytes) {
  const iso_attention_args *f = &job->args->forward;
  const grad_scratch own = job->scratch;
  grad_scratch second;
  plan_grad(&job->scratch, worker->scratch, f->queries, f->head_dim);
  plan_grad(&second, (char *)worker->scratch + bytes, f->queries, f->head_dim);
  job->scratch.scores = own.scores;
  job->scratch.products = own.products;
  job->scratch.probabilities = own.probabilities;
  job->scratch.gradients = own.gradients;
  job->scratch.packed_gradients = own.packed_gradients;
  job->progress = (grad_progress *)(void *)second.dk;
  job->team = worker->team;
  job->sharers = worker->threads;
  job->share = worker->thread;
}

void iso_attention_grad_run(const iso_attention_set *set, const iso_attention_grad_args *args,
                            const iso_worker *worker) {
  const iso_attention_args *f = &args->forward;
  grad_job job = {.set = set, .args = args, .length = f->queries, .sharers = 1};
  size_t bytes = iso_attention_grad_scratch(f->batch, f->queries, f->heads, f->kv_heads, f->head_dim, 1);
  plan_grad(&job.scratch, (char *)worker->scratch + bytes * (size_t)worker->thread, f->queries, f->head_dim);
  const iso_tile_set *tiles = set->tiles;
  job.query_block = ISO_SCORE_UNITS * tiles->step;
  job.key_block = KEY_BLOCK_MAX / tiles->rows * tiles->rows;
  job.dq_rows = round_up(job.query_block, tiles->rows);
  job.padded = round_up(f->head_dim, tiles->cols);
  job.units = (f->head_dim + tiles->step - 1) / tiles->step;
  int64_t task = 0, end = f->batch * f->kv_heads;
  if (worker->threads > 1 && sharing_pays(&job, end, worker->threads)) {
    share_scratch(&job, worker, bytes);
  } else {
    iso_split(f->batch * f->kv_heads, 1, worker, &task, &end);
  }
  for (; task < end; task++) group_grad(&job, task / f->kv_heads, task % f->kv_heads);
}
