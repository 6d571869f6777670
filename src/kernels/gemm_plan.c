/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products over a tier's tile set: how C is dealt to threads, cut into blocks, and the scratch that takes.
 *
 * Threads form a grid over C; each computes one rectangle alone, packing what it needs into scratch of its own (what is
 * packed twice costs less than meeting at barriers). Inside are blocks of C and of DEPTH_BLOCK units of k, as large as
 * scratch allows, so that little is packed twice. In a block a group of right panels is packed at a time; tiles read
 * the left operand as it lies in its matrix where they can, else it is packed whole. A group is swept over a strip of
 * left panels that stays in the outer cache, strip by strip.
 *
 * An operand whose lines cross the matrix's rows is packed on the way: the first tile that needs a panel stores it
 * while its multiply-adds wait for each other, which leaves loads and stores idle (left panels two at a time, so that a
 * line of the matrix is read once). So nothing is packed in a pass of its own over a tensor, and while a group is
 * swept, what is packed next is fetched towards the caches, a few lines with every tile. Blocks and tiles are of equal
 * size as nearly as they can be (1,024 rows are 74 tiles of 14 and 13 rows, and none of 2).
 *
 * Invariants
 *  1. Nothing here decides bits: an element's chain of additions runs in the order of k through all depth blocks (its
 *     accumulators wait in scratch between them), in whichever tile it falls (tile.h, invariant 1).
 *     Products of up to ISO_FEW_ROWS rows with an N x K matrix have a form of their own, chosen by shape alone.
 *  2. Scratch is written before it is read.
 *  3. An epilogue gets each column of each row once, after its last depth block, when the strip and the group it lies
 * in are complete: heads that a group's border cuts wait for the next group. The grid of threads cuts no head. A paired
 * one sees C as its first half: a group is half panels of that, half panels of the other.
 */
#include "kernels/tile.h"

#include <string.h>

enum {
  DEPTH_BLOCK = 1024,   /* units of k in a packed panel */
  LEFT_BYTES = 8 << 20, /* of a packed left operand: lines of a block of C, where it is packed */
  SUM_COLS = 2048,      /* of a block of C where k has several blocks; a multiple of every tier's tile columns */
  SUMS = 1 << 22,       /* accumulators that wait between blocks of k */
  GROUP = 8,            /* right panels packed at a time, at most */
  GROUP_BYTES = 393216, /* of them */
  CHUNK = 16,           /* units of k that are packed for all panels in turn when lines are columns of the matrix */
  STRIP_BYTES = 393216, /* of left panels that a group sweeps at a time, so that they stay in the outer cache */
  FAR_BYTES = 8 << 20,  /* an operand that is fetched ahead of its packing; what is nearer is there in time */
  LINE = 64,            /* bytes of a cache line */
  L1_SETS = 64,         /* lines after which addresses meet again */
  TILE_ROWS_MAX = 14,
  TILE_COLS_MAX = 32,
  FEW_ROWS_GRAIN = 64, /* columns that few_rows deals at a time */
  FEWEST_ROWS = 8,     /* fewer rows of a tile take no less time */
  PACKS_A_FROM = 256,  /* columns; see form_of */
  EPILOGUE_COST = 24,  /* of an element, in multiply-adds */
  PACK_COST = 8        /* packing an element of A or B, in multiply-adds */
};

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t parts_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

static int64_t round_up(int64_t x, int64_t grain) {
  return parts_of(x, grain) * grain;
}

/* Where part i of `count` things in `parts` parts begins; the parts' sizes differ by one at most. */
static int64_t part_begin(int64_t count, int64_t parts, int64_t i) {
  return i * (count / parts) + min_of(i, count % parts);
}

/* Byte offsets of the three areas of one thread's scratch; all multiples of 64. */
typedef struct scratch_plan {
  size_t right, sums, total;
} scratch_plan;

static scratch_plan plan_scratch(int64_t m, int64_t n, int64_t k) {
  int64_t depth = min_of(k, DEPTH_BLOCK),
          slack = 2 * TILE_ROWS_MAX; /* a tile that is not full, one that is not there */
  int64_t cols = round_up(min_of(n, SUM_COLS), TILE_COLS_MAX), row = depth * 4 + LINE;
  scratch_plan plan;
  plan.right = (size_t)round_up(min_of(m * row, LEFT_BYTES) + slack * row, LINE);
  plan.sums = plan.right + (size_t)(min_of(round_up(n, TILE_COLS_MAX), GROUP * TILE_COLS_MAX) * depth * 4);
  plan.total = plan.sums;
  if (k > DEPTH_BLOCK) plan.total += (size_t)(min_of(m * cols, SUMS) + slack * cols) * 4;
  plan.total = (size_t)round_up((int64_t)plan.total, 4096);
  return plan;
}

size_t iso_gemm_scratch(int64_t m, int64_t n, int64_t k, iso_dtype type, int threads) {
  return plan_scratch(m, n, k).total * (size_t)threads;
}

/* Columns to plan for when both halves end in a panel of their own. */
static int64_t paired_cols(int64_t n) {
  return round_up(n, 2 * TILE_COLS_MAX);
}

size_t iso_gemm_paired_scratch(int64_t m, int64_t n, int64_t k, iso_dtype type, int threads) {
  return iso_gemm_scratch(m, paired_cols(n), k, type, threads);
}

/* The grid of threads over C, its columns cut at multiples of `grain`, with the least work for the busiest: products
 * first, packing second, and the epilogue where it has work in some of the columns only. Returns the grid's columns. */
static int choose_grid(const iso_gemm_args *args, int64_t grain, int64_t depth, int threads, int *down) {
  const iso_epilogue *epilogue = args->epilogue;
  int64_t m = args->c.rows, n = args->c.cols, best_cost = INT64_MAX;
  int best_across = 1;
  *down = 1;
  for (int across = 1; across <= threads; across++) {
    int64_t rows = max_of(parts_of(m, threads / across), FEWEST_ROWS);
    int64_t cols = parts_of(parts_of(n, grain), across) * grain;
    int64_t cost = rows * cols + PACK_COST * (rows + cols);
    if (epilogue && !epilogue->paired) cost += EPILOGUE_COST * rows * min_of(cols, epilogue->busy) / max_of(depth, 1);
    if (cost >= best_cost) continue;
    best_cost = cost;
    best_across = across;
    *down = threads / across;
  }
  return best_across;
}

/* Rows of memory still to be fetched: `rows` rows of `bytes`, `stride` apart; `each` lines at a time. */
typedef struct gemm_ahead {
  const char *row;
  int64_t rows, bytes, stride, offset, each;
} gemm_ahead;

/* Rows of tiles, and the seconds they took. */
typedef struct gemm_tiles {
  double rows, seconds;
} gemm_tiles;

/* One thread's state: its rectangle of C, cut into blocks, and its scratch. */
typedef struct gemm_job {
  const iso_tile_set *set;
  const iso_gemm_args *args;
  char *left, *right;
  float *sums;
  double *packing;              /* seconds, or NULL: not timed */
  gemm_tiles plain, packers;    /* timed ones */
  int64_t depth;                /* K */
  int64_t row, rows, col, cols; /* the rectangle */
  int64_t down, across, deep;   /* blocks in each direction */
  int64_t block_cols;           /* of a block, at most */
  int64_t halves, apart;        /* 2: columns are those of C's first half, the other's lie `apart` after them */
  gemm_ahead next_left, next_right[2];
} gemm_job;

typedef enum left_form { LEFT_PACKED, LEFT_DIRECT, LEFT_COPIED } left_form;

/* A block of C and of k. Its rows are cut into `tiles` tiles whose heights differ by one at most. */
typedef struct gemm_block {
  int64_t row, rows, tiles;
  int64_t col, cols;
  int64_t k, depth, units;
  left_form left;
  bool packers; /* tiles that pack on the way can be used */
} gemm_block;

/* How tiles read A: as it lies, where the tier can, rows of k are whole units and tiles are high. Where the rows of a
 * tile all fall into the same few sets of the inner cache and there are enough columns to pay for it, from a copy whose
 * rows do not. Else packed. */
static left_form form_of(const gemm_job *job, const gemm_block *block) {
  const iso_matrix *a = &job->args->a;
  int64_t lines = a->ld * (int64_t)iso_dtype_size(a->dtype) / LINE;
  if (!job->set->multiply_direct || job->args->a_transposed || block->depth % job->set->step != 0 ||
      block->rows / block->tiles < job->set->rows - 2)
    return LEFT_PACKED;
  bool spread = lines == 0 || lines % (L1_SETS / 2) != 0;
  if (spread || job->cols * job->halves <= PACKS_A_FROM) return LEFT_DIRECT;
  return block->units > 0 && block->units % ISO_LINE_UNITS == 0 ? LEFT_COPIED : LEFT_PACKED;
}

/* Bytes from row to row of a copy. */
static int64_t copy_stride(const gemm_block *block) {
  return block->units * 4 + LINE;
}

/* Block i in the order of work: k innermost, rows outermost. */
static gemm_block block_at(const gemm_job *job, int64_t i) {
  int64_t p = i % job->deep, c = i / job->deep % job->across, r = i / job->deep / job->across;
  int64_t units = parts_of(job->depth, job->set->step), first = part_begin(units, job->deep, p);
  gemm_block block = {.row = part_begin(job->rows, job->down, r), .col = c * job->block_cols};
  block.rows = part_begin(job->rows, job->down, r + 1) - block.row;
  block.cols = min_of(job->cols - block.col, job->block_cols);
  block.tiles = parts_of(block.rows, job->set->rows);
  block.row += job->row;
  block.col += job->col;
  block.k = first * job->set->step;
  block.units = part_begin(units, job->deep, p + 1) - first;
  block.depth = min_of(block.units * job->set->step, job->depth - block.k);
  block.left = form_of(job, &block);
  block.packers = job->set->multiply_packing && block.depth == block.units * job->set->step && block.units > 0 &&
                  block.rows / block.tiles >= job->set->rows - 2;
  return block;
}

/* Lines of an operand that go into `panels` panels of `width`. */
typedef struct gemm_lines {
  const iso_matrix *matrix;
  bool across; /* the lines are columns of the matrix */
  int64_t first, count, panels;
  int width;
  bool even; /* heights differ by one at most; else all panels but the last are full */
} gemm_lines;

/* Packs units [unit, unit + units) of all the panels. */
static void pack_units(const gemm_job *job, const gemm_lines *lines, char *to, const gemm_block *block, int64_t unit,
                       int64_t units) {
  const iso_matrix *m = lines->matrix;
  int64_t k = unit * job->set->step, depth = min_of(units * job->set->step, block->depth - k), line = 0;
  int64_t each = lines->even ? lines->count / lines->panels : lines->width;
  int64_t extra = lines->even ? lines->count % lines->panels : 0;
  const iso_tile_set *set = job->set;
  bool two = lines->across && lines->even && set->pack_two;
  for (int64_t p = 0; p < lines->panels; p++) {
    int64_t count = min_of(each + (p < extra ? 1 : 0), lines->count - line);
    int64_t at =
        lines->across ? (block->k + k) * m->ld + lines->first + line : (lines->first + line) * m->ld + block->k + k;
    const char *source = (const char *)m->data + (size_t)at * iso_dtype_size(m->dtype);
    char *panel = to + (p * block->units + unit) * lines->width * 4;
    line += count;
    if (two && p + 1 < lines->panels) {
      int64_t next = each + (++p < extra ? 1 : 0);
      set->pack_two(panel, panel + block->units * lines->width * 4, lines->width, source, m->ld, count, next, depth);
      line += next;
    } else {
      set->pack(panel, lines->width, source, m->ld, count, depth, lines->across);
    }
  }
}

/* Rows of the matrix are read as they lie in memory: whole ones when they are lines, a few in step when they cross. */
static void pack_panels(gemm_job *job, const gemm_lines *lines, char *to, const gemm_block *block) {
  double began = job->packing ? iso_clock_s() : 0.0;
  if (lines->across)
    for (int64_t unit = 0; unit < block->units; unit += CHUNK)
      pack_units(job, lines, to, block, unit, min_of(CHUNK, block->units - unit));
  else
    pack_units(job, lines, to, block, 0, block->units);
  if (job->packing) *job->packing += iso_clock_s() - began;
}

/* What the lines take of the block's k, to be fetched within `times` calls if it comes from afar and is packed at once.
 */
static gemm_ahead ahead_of(const gemm_lines *lines, const gemm_block *block, int64_t times) {
  const iso_matrix *m = lines->matrix;
  int64_t size = (int64_t)iso_dtype_size(m->dtype);
  int64_t at = lines->across ? block->k * m->ld + lines->first : lines->first * m->ld + block->k;
  if (m->rows * m->ld * size < FAR_BYTES || (lines->across && block->packers)) return (gemm_ahead){.rows = 0};
  gemm_ahead ahead = {.row = (const char *)m->data + at * size,
                      .rows = lines->across ? block->depth : lines->count,
                      .bytes = (lines->across ? lines->count : block->depth) * size,
                      .stride = m->ld * size};
  ahead.each = parts_of(ahead.rows * parts_of(ahead.bytes, LINE), times);
  return ahead;
}

static void fetch_ahead(gemm_ahead *ahead) {
  for (int64_t lines = ahead->each; lines > 0 && ahead->rows > 0;) {
    const char *at = ahead->row + ahead->offset;
    int64_t run = min_of(lines, parts_of(ahead->bytes - ahead->offset, LINE));
    for (int64_t line = 0; line < run; line++) __builtin_prefetch(at + line * LINE, 0, 2);
    lines -= run;
    ahead->offset += run * LINE;
    if (ahead->offset < ahead->bytes) continue;
    ahead->offset = 0;
    ahead->row += ahead->stride;
    ahead->rows--;
  }
}

static gemm_lines left_lines(const gemm_job *job, const gemm_block *block) {
  return (gemm_lines){.matrix = &job->args->a,
                      .across = job->args->a_transposed,
                      .first = block->row,
                      .count = block->rows,
                      .panels = block->tiles,
                      .width = job->set->rows,
                      .even = true};
}

/* Columns of right panels that are packed at a time, in each half. */
static int64_t group_cols(const gemm_job *job, const gemm_block *block) {
  int64_t panels = GROUP_BYTES / (max_of(block->units, 1) * job->set->cols * 4);
  return min_of(max_of(panels, 2), GROUP) / job->halves * job->set->cols;
}

/* The group of columns that begins at column `col` of the block, in a half. */
static gemm_lines right_lines(const gemm_job *job, const gemm_block *block, int64_t col, int64_t half) {
  int64_t count = min_of(block->cols - col, group_cols(job, block));
  return (gemm_lines){.matrix = &job->args->b,
                      .across = !job->args->b_transposed,
                      .first = block->col + col + half * job->apart,
                      .count = count,
                      .panels = parts_of(count, job->set->cols),
                      .width = job->set->cols};
}

/* Adds the time of a tile since *began. */
static void tile_took(gemm_tiles *tiles, int rows, double *began) {
  double now = iso_clock_s();
  tiles->rows += rows;
  tiles->seconds += now - *began;
  *began = now;
}

/* Tiles t and t + 1 of the block, for a tile that packs both on the way. */
static iso_tile_pair left_pair(const gemm_job *job, const gemm_block *block, int64_t t) {
  const iso_matrix *a = &job->args->a;
  int64_t size = (int64_t)iso_dtype_size(a->dtype), bytes = job->set->rows * block->units * 4;
  int64_t first = part_begin(block->rows, block->tiles, t), next = part_begin(block->rows, block->tiles, t + 1);
  int64_t end = t + 2 <= block->tiles ? part_begin(block->rows, block->tiles, t + 2) : next;
  return (iso_tile_pair){.panel = job->left + t * bytes,
                         .next_panel = job->left + (t + 1) * bytes,
                         .source = (const char *)a->data + (block->k * a->ld + block->row + first) * size,
                         .row_bytes = a->ld * size,
                         .count = (int)(next - first),
                         .next_count = (int)(end - next)};
}

/* A right panel, and what is still to be packed of the operands when it meets them. */
typedef struct gemm_panel {
  char *right;
  int64_t at, half; /* the block's columns from `at` on in a half */
  bool fresh;       /* the panel itself: by tile 0 */
  bool left_fresh;  /* A: from tile 2 on by every other one if it is packed, from tile 1 on if it is copied */
} gemm_panel;

/* One right panel against tiles [tile, end). */
static void sweep_panel(gemm_job *job, const gemm_block *block, int64_t tile, int64_t end, const gemm_panel *panel) {
  const iso_tile_set *set = job->set;
  const iso_matrix *a = &job->args->a, *b = &job->args->b, *c = &job->args->c;
  size_t size = iso_dtype_size(c->dtype);
  int64_t row = block->row + part_begin(block->rows, block->tiles, tile);
  int64_t kept = panel->at + panel->half * round_up(block->cols, set->cols);
  int64_t col = panel->at + panel->half * job->apart;
  iso_tile_out out = {.sums = job->sums + (kept * block->tiles + tile * set->cols) * set->rows,
                      .sums_ld = set->cols,
                      .load = block->k > 0,
                      .keep = block->k + block->depth < job->depth,
                      .c = (char *)c->data + (size_t)(row * c->ld + block->col + col) * size,
                      .ld = c->ld,
                      .dtype = c->dtype,
                      .accumulate = job->args->accumulate,
                      .bias = job->args->bias ? job->args->bias + block->col + col : NULL,
                      .count_cols = (int)min_of(block->cols - panel->at, set->cols)};
  int64_t a_size = (int64_t)iso_dtype_size(a->dtype), a_row = a->ld * a_size;
  int64_t b_size = (int64_t)iso_dtype_size(b->dtype), b_row = b->ld * b_size;
  const char *left = (const char *)a->data + row * a_row + block->k * a_size;
  const char *source = (const char *)b->data + block->k * b_row + (block->col + col) * b_size;
  int64_t each = block->rows / block->tiles, extra = block->rows % block->tiles, row_in = row - block->row;
  bool direct = block->left == LEFT_DIRECT, copied = block->left == LEFT_COPIED;
  int64_t left_row = direct ? a_row : copied ? copy_stride(block) : 0;
  double began = job->packing ? iso_clock_s() : 0.0;
  for (int64_t t = tile; t < end; t++) {
    bool packs_right = t == 0 && panel->fresh;
    bool packs_left = panel->left_fresh && (copied ? t > 0 : t > 1 && t % 2 == 0);
    char *packed = copied ? job->left + row_in * left_row : job->left + t * set->rows * block->units * 4;
    fetch_ahead(&job->next_left);
    fetch_ahead(&job->next_right[panel->half]);
    out.count_rows = (int)(each + (t < extra ? 1 : 0));
    if (packs_right) {
      set->multiply_packing(direct ? left : packed, left_row, panel->right, source, b_row, block->units, &out);
    } else if (packs_left && copied) {
      set->multiply_copying(packed, left_row, left, a_row, panel->right, block->units, &out);
    } else if (packs_left) {
      iso_tile_pair pair = left_pair(job, block, t);
      set->multiply_pair(&pair, panel->right, block->units, &out);
    } else if (direct || copied) {
      set->multiply_direct(direct ? left : packed, left_row, panel->right, block->units, &out);
    } else {
      set->multiply(packed, panel->right, block->units, &out);
    }
    if (job->packing) tile_took(packs_right || packs_left ? &job->packers : &job->plain, out.count_rows, &began);
    left += out.count_rows * a_row;
    row_in += out.count_rows;
    out.sums += set->rows * set->cols;
    out.c = (char *)out.c + (size_t)(out.count_rows * c->ld) * size;
  }
}

/* Tiles [tile, end) are complete in the columns [col, col + cols) of the block. */
static void finish(const gemm_job *job, const gemm_block *block, int64_t tile, int64_t end, int64_t col, int64_t cols) {
  const iso_epilogue *epilogue = job->args->epilogue;
  if (!epilogue || block->k + block->depth < job->depth) return;
  int64_t row = part_begin(block->rows, block->tiles, tile), rows = part_begin(block->rows, block->tiles, end) - row;
  int64_t first = (block->col + col) / epilogue->grain, last = (block->col + col + cols) / epilogue->grain;
  if (first == last) return;
  epilogue->run(epilogue, block->row + row, rows, first * epilogue->grain, (last - first) * epilogue->grain);
}

/* The group that begins at `col`: packed, now or on the way, and swept over the block's rows. */
static void run_group(gemm_job *job, const gemm_block *block, const gemm_block *after, int64_t col, bool left_fresh) {
  const int cols = job->set->cols;
  const int64_t panel = block->units * cols * 4, next = col + group_cols(job, block);
  int64_t count = 0;
  bool fresh = false;
  for (int64_t half = 0; half < job->halves; half++) {
    gemm_lines lines = right_lines(job, block, col, half);
    fresh = lines.across && block->packers && lines.count % cols == 0;
    if (!fresh) pack_panels(job, &lines, job->right + half * lines.panels * panel, block);
    job->next_right[half] = (gemm_ahead){.rows = 0};
    count = lines.count;
    if (next >= block->cols && after->row < 0) continue;
    const gemm_block *of = next < block->cols ? block : after;
    gemm_lines coming = right_lines(job, of, next < block->cols ? next : 0, half);
    job->next_right[half] = ahead_of(&coming, of, lines.panels * block->tiles);
  }
  int64_t strip = max_of(STRIP_BYTES / (job->set->rows * max_of(block->units, 1) * 4), 1);
  for (int64_t tile = 0; tile < block->tiles; tile += strip) {
    const int64_t end = min_of(tile + strip, block->tiles);
    gemm_panel now = {.right = job->right, .fresh = fresh};
    for (now.half = 0; now.half < job->halves; now.half++)
      for (now.at = col; now.at < col + count; now.at += cols, now.right += panel) {
        now.left_fresh = left_fresh && now.right == job->right;
        sweep_panel(job, block, tile, end, &now);
      }
    finish(job, block, tile, end, col, count);
  }
}

/* The block's part of A as its tiles read it: all of it, or only what is not packed on the way. */
static void pack_left(gemm_job *job, const gemm_block *block, bool on_the_way) {
  if (block->left == LEFT_COPIED) {
    const iso_matrix *a = &job->args->a;
    const int64_t size = (int64_t)iso_dtype_size(a->dtype), rows = part_begin(block->rows, block->tiles, 1);
    const char *row = (const char *)a->data + (block->row * a->ld + block->k) * size;
    double began = job->packing ? iso_clock_s() : 0.0;
    for (int64_t r = 0; r < rows; r++)
      memcpy(job->left + r * copy_stride(block), row + r * a->ld * size, (size_t)block->units * 4);
    if (job->packing) *job->packing += iso_clock_s() - began;
    return;
  }
  gemm_lines lines = left_lines(job, block);
  if (on_the_way) { /* the first two panels are packed at once, the others by tiles */
    lines.panels = min_of(lines.panels, 2);
    lines.count = part_begin(block->rows, block->tiles, lines.panels);
  }
  pack_panels(job, &lines, job->left, block);
}

/* All of block i; `left` holds its part of A already unless the previous block was of other rows or another k. */
static void run_block(gemm_job *job, int64_t i, int64_t count) {
  gemm_block none = {.row = -1}, block = block_at(job, i);
  gemm_block before = i > 0 ? block_at(job, i - 1) : none, after = i + 1 < count ? block_at(job, i + 1) : none;
  bool new_left = block.left != LEFT_DIRECT && (before.row != block.row || before.k != block.k);
  bool left_fresh =
      new_left && (block.left == LEFT_COPIED || (job->args->a_transposed && block.packers)); /* on the way */
  if (new_left) pack_left(job, &block, left_fresh);
  job->next_left = (gemm_ahead){.rows = 0};
  if (after.row >= 0 && after.left == LEFT_PACKED && (after.row != block.row || after.k != block.k)) {
    gemm_lines lines = left_lines(job, &after);
    job->next_left = ahead_of(&lines, &after, parts_of(block.cols, job->set->cols) * job->halves * block.tiles);
  }
  const int64_t step = group_cols(job, &block);
  for (int64_t col = 0; col < block.cols; col += step) run_group(job, &block, &after, col, left_fresh && col == 0);
}

/* The least multiple of both. */
static int64_t common_grain(int64_t a, int64_t b) {
  int64_t x = a, y = b;
  while (y != 0) {
    int64_t rest = x % y;
    x = y;
    y = rest;
  }
  return a / x * b;
}

void iso_gemm_by_rectangle(void (*run)(const iso_gemm_args *args, const iso_worker *worker), const iso_gemm_args *args,
                           int64_t grain, bool by_rows, const iso_worker *worker) {
  const iso_epilogue *epilogue = args->epilogue;
  const iso_worker alone = {.threads = 1, .scratch = worker->scratch};
  const int64_t halves = epilogue->paired ? 2 : 1, n = args->c.cols / halves;
  int64_t row = 0, row_end = args->c.rows, col = 0, col_end = n;
  if (by_rows)
    iso_split(row_end, 1, worker, &row, &row_end);
  else
    iso_split(n, common_grain(grain, epilogue->grain), worker, &col, &col_end);
  if (row == row_end || col == col_end) return;
  for (int64_t half = 0; half < halves; half++) {
    iso_gemm_args part = *args;
    int64_t first = col + half * n, a_at = args->a_transposed ? row : row * args->a.ld;
    int64_t b_at = args->b_transposed ? first * args->b.ld : first;
    part.epilogue = NULL;
    part.a.data = (char *)args->a.data + (size_t)a_at * iso_dtype_size(args->a.dtype);
    part.b.data = (char *)args->b.data + (size_t)b_at * iso_dtype_size(args->b.dtype);
    part.c.data = (char *)args->c.data + (size_t)(row * args->c.ld + first) * iso_dtype_size(args->c.dtype);
    part.c.rows = row_end - row;
    part.c.cols = col_end - col;
    *(args->a_transposed ? &part.a.cols : &part.a.rows) = part.c.rows;
    *(args->b_transposed ? &part.b.rows : &part.b.cols) = part.c.cols;
    if (args->bias) part.bias = args->bias + first;
    run(&part, &alone);
  }
  epilogue->run(epilogue, row, row_end - row, col, col_end - col);
}

/* Cuts the rectangle into blocks: whole where k is one block and A is read as it lies. */
static void cut_blocks(gemm_job *job) {
  int64_t units = parts_of(job->depth, job->set->step);
  job->deep = max_of(parts_of(units, DEPTH_BLOCK), 1); /* one for K = 0: C is then zero */
  job->block_cols = job->deep > 1 ? SUM_COLS / job->halves : max_of(job->cols, 1);
  job->across = parts_of(job->cols, job->block_cols);
  int64_t rows = job->rows, deepest = max_of(parts_of(units, job->deep), 1);
  gemm_block whole = {.rows = rows, .tiles = max_of(parts_of(rows, job->set->rows), 1), .depth = job->depth};
  if (form_of(job, &whole) != LEFT_DIRECT) rows = min_of(rows, LEFT_BYTES / (deepest * 4 + LINE));
  int64_t cols = round_up(max_of(min_of(job->cols, job->block_cols), 1), job->set->cols);
  if (job->deep > 1) rows = min_of(rows, SUMS / (cols * job->halves));
  job->down = rows > 0 ? parts_of(job->rows, rows) : 0;
}

void iso_gemm_run(const iso_tile_set *set, const iso_gemm_args *args, const iso_worker *worker) {
  const iso_epilogue *epilogue = args->epilogue;
  const int64_t halves = epilogue && epilogue->paired ? 2 : 1;
  int64_t m = args->c.rows, n = args->c.cols / halves;
  if (m <= ISO_FEW_ROWS && !args->a_transposed && args->b_transposed) {
    if (epilogue)
      iso_gemm_by_rectangle(set->few_rows, args, FEW_ROWS_GRAIN, false, worker);
    else
      set->few_rows(args, worker);
    return;
  }
  int64_t depth = args->a_transposed ? args->a.rows : args->a.cols;
  int64_t grain = common_grain(set->cols, epilogue ? epilogue->grain : 1);
  int down, across = choose_grid(args, grain * halves, depth, worker->threads, &down);
  if (worker->thread >= down * across) return;
  iso_worker by_row = {.thread = worker->thread / across, .threads = down};
  iso_worker by_col = {.thread = worker->thread % across, .threads = across};
  int64_t row_begin, row_end, col_begin, col_end;
  iso_split(m, 1, &by_row, &row_begin, &row_end);
  iso_split(n, grain, &by_col, &col_begin, &col_end);
  scratch_plan plan = plan_scratch(m, halves == 2 ? paired_cols(args->c.cols) : n, depth);
  char *scratch = (char *)worker->scratch + plan.total * (size_t)worker->thread;
  gemm_job job = {.set = set,
                  .args = args,
                  .left = scratch,
                  .right = scratch + plan.right,
                  .sums = (float *)(void *)(scratch + plan.sums),
                  .packing = args->packing_s ? &args->packing_s[worker->thread] : NULL,
                  .depth = depth,
                  .row = row_begin,
                  .rows = row_end - row_begin,
                  .col = col_begin,
                  .cols = col_end - col_begin,
                  .halves = halves,
                  .apart = n};
  cut_blocks(&job);
  int64_t count = job.down * job.across * job.deep;
  for (int64_t i = 0; i < count; i++) run_block(&job, i, count);
  if (job.packing && job.plain.rows > 0) {
    double over = job.packers.seconds - job.packers.rows * job.plain.seconds / job.plain.rows;
    if (over > 0) *job.packing += over;
  }
}
