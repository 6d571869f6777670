/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of a run do together. Each computes the leaves (virtual workers) that it owns; their partial sums, the
 * rounded gradient and a board of words lie in memory that the ranks of the host share (src/comm). Of several hosts
 * each has a copy of what is gathered, and of the board.
 *
 * A step: leaves, and beside the last of them agreement on the step, then bucket after bucket reduced, rounded and
 * gathered (ranks_reduce.c) | losses are gathered | clip and update, by every rank alike.
 *
 * Invariants
 *  1. A word on the board is written before its rank begins a collective, read after that is done, and written again
 *     only when another one has been done in between, so nobody reads half of it.
 *  2. What one rank knows and all must do alike (a failure, a signal) is agreed at a collective: no rank acts alone.
 *     One that fails outside of a step takes part in the agreement on the next, in which it says so.
 *  3. A failure is said by one rank, the lowest that has it; that a rank is lost, by each that finds it.
 *  4. All ranks have read the same batch: compared by its CRC in every step. Every parallel.check_every steps they
 *     compare their weights; that these differ is on the disk (store's differed.c) before anybody ends for it.
 *  5. In a step only the reducer's thread waits for others, until it is done; else only the thread that computes.
 *  6. State that a host's ranks share (parallel.zero) is updated by each in its own part, and not before all are past
 *     the gate, so that a snapshot has copied aside what it still needs; nobody goes on before all parts are updated.
 *     A step that is lost in between leaves no state that could be written.
 *
 * Every rank runs the whole data ring.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/reducer.h"
#include "train/tracing.h"

/* CHUNK: elements that are added, or sent, at once. PART: the same where each rank is alone on its host: with nothing
 * to fold it waits until a chunk of each other host is there, and while it adds those it sends nothing. */
enum { CHUNK = ISO_NORM_BLOCK, PART = CHUNK / 4, ALIGN = 4096 };

/* Each a collective of its own. */
typedef enum channel {
  REDUCTION,
  GRADIENT,
  SECOND_GRADIENT,
  SQUARES,
  WORDS,
  LOSSES,
  ENDS,
  UPDATE, /* of the ranks of a host alone */
  UPDATED,
  MEETING, /* in turns with the next */
  SECOND_MEETING,
  SPREAD, /* weights, moments, cursors, order */
  CHANNELS = SPREAD + 5
} channel;

typedef struct word { /* of a rank, in a step */
  iso_status status;
  uint32_t batch;   /* CRC of tokens and labels */
  uint32_t weights; /* CRC of the master weights before it; in a step that checks them */
  int64_t step, scored;
  int32_t reduction; /* by rank 0: which of the two this step makes */
  iso_budget budget; /* of the step before; and what its machine said: */
  iso_evidence evidence;
  int64_t trace; /* by rank 0: that is wanted, 0: none; its beginning, and when rank 0 had agreed on the step before: */
  double trace_base_s, agreed_s;
} word;

typedef struct end { /* of a step, by rank 0 */
  int32_t stop;      /* it is the last one */
} end;

typedef struct note { /* of a rank, at a meeting */
  iso_status status;
  int32_t goes_on;                          /* by rank 0: there are steps to take */
  int32_t incarnation, logged;              /* by rank 0: of the start; it has a step log */
  int64_t step, adam_step, tokens, refused; /* by rank 0: that the run goes on behind */
} note;

typedef struct board {
  word words[ISO_MOST_RANKS];
  end ends[ISO_MOST_RANKS];
  note notes[2][ISO_MOST_RANKS]; /* of meetings, in turns */
} board;

struct iso_ranks {
  iso_ranks_plan plan;
  int rank;
  iso_shared *shared;
  board *board;
  iso_pulse *pulse; /* of a launcher's ranks */
  iso_reduce *reduce;
  iso_gather *gathers[CHANNELS];
  iso_reducer *reducer;        /* once steps are taken */
  int32_t *order;              /* of its buckets */
  iso_exec_handover *handover; /* of its parts, once they are final; NULL: nobody asks */
  void *handover_context;
  int64_t by_rank[ISO_MOST_RANKS + 1], by_leaf[ISO_MOST_RANKS + 1];     /* who owns what */
  int64_t by_element[ISO_MOST_RANKS + 1], by_block[ISO_MOST_RANKS + 1]; /* of the bucket at hand */
  int64_t nothing[ISO_MOST_RANKS + 1];
  int64_t from_zero[ISO_MOST_RANKS + 1]; /* bytes of rank 0 */
  int spreads;
  note note; /* to the next meeting */
  const float *pieces[ISO_MOST_RANKS];
  iso_flat_shared flat_shared;
  double *losses, *board_losses; /* [W]: of this process; of all, when they are gathered */
  iso_exchange exchange;
  iso_flat *flat;      /* the engine's */
  const iso_step *now; /* the step that is computed */
  const volatile sig_atomic_t *stop_signal;
  int64_t step, last_step;           /* taken; to be taken */
  int64_t check_every, checked_step; /* behind which the weights were last seen to be alike */
  iso_ranks_differed differed;
  int64_t meetings;
  size_t rows; /* of the global batch */
  double wait_s;
  iso_budget last; /* of the step before, of this rank; of all: */
  iso_evidence seen;
  iso_budget budgets[ISO_MOST_RANKS];
  iso_evidence evidence[ISO_MOST_RANKS];
  int64_t trace; /* as in the words; agreed_s: of this rank, clock_s: what its clock is ahead of rank 0's */
  double trace_base_s, agreed_s, clock_s;
  bool begun;    /* rank 0 has said whether there are steps to take */
  bool over;     /* nobody waits for this rank any more */
  bool lost;     /* a rank is */
  bool stops;    /* the last step is taken */
  int reduction; /* that this step makes */
};

static size_t padded(size_t bytes) {
  return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static size_t blocks_of(const iso_ranks_plan *plan) {
  return (size_t)((plan->elements + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK);
}

/* Weights and moments of all ranks of the host, behind `used` bytes. */
static size_t lay_out_state(const iso_ranks_plan *plan, iso_flat_shared *shared, char *base, size_t used) {
  const size_t state = padded((size_t)plan->elements * sizeof(float));
  if (plan->zero < 1) return used;
  if (shared) {
    shared->master = (float *)(void *)(base + used);
    shared->moment1 = (float *)(void *)(base + used + state);
    shared->moment2 = (float *)(void *)(base + used + 2 * state);
  }
  used += 3 * state;
  if (plan->zero < 3 || plan->compute != ISO_BF16) return used;
  if (shared) shared->weights = (iso_bf16 *)(void *)(base + used);
  return used + padded((size_t)plan->elements * sizeof(iso_bf16));
}

/* The common memory: board, reduced gradients, squares, losses, state. With `ranks` it also hands out their addresses.
 */
static size_t lay_out(const iso_ranks_plan *plan, iso_ranks *ranks) {
  char *base = ranks ? iso_shared_common(ranks->shared) : NULL;
  const size_t gradient = (size_t)plan->elements * iso_dtype_size(plan->gradient);
  size_t used = padded(sizeof(board));
  if (ranks) ranks->board = (board *)(void *)base;
  for (int i = 0; i < (plan->log ? 2 : 1); i++, used += padded(gradient))
    if (ranks) ranks->flat_shared.reductions[i] = base + used;
  if (ranks) ranks->flat_shared.squares = (double *)(void *)(base + used);
  used += padded(blocks_of(plan) * sizeof(double));
  if (ranks) ranks->board_losses = (double *)(void *)(base + used);
  used += padded((size_t)plan->workers * sizeof(double));
  return lay_out_state(plan, ranks ? &ranks->flat_shared : NULL, base, used);
}

size_t iso_ranks_common_bytes(const iso_ranks_plan *plan) {
  return lay_out(plan, NULL);
}

/* ---- agreeing ---- */

/* Ranks other than 0 are quiet; this is to be said by them too. `before`: in front of it. */
static iso_status say(const iso_ranks *ranks, iso_status status, const char *before) {
  if (ranks->rank == 0) return status; /* it was said as it came about */
  const char *cause = iso_last_error();
  char text[2048];
  (void)snprintf(text, sizeof text, "%s", cause[0] ? cause : iso_status_name(status));
  const bool quiet = iso_log_quiet(false);
  status = iso_fail(status, "%s%s", before, text);
  iso_log_quiet(quiet);
  return status;
}

/* A launcher ends all when the first one ends badly; rank 0 has something to make durable. */
static const double GRACE_S = 5;

static iso_status lose(iso_ranks *ranks, iso_status status) {
  ranks->over = ranks->lost = true;
  if (ranks->plan.world && ranks->rank != 0) iso_shared_await_end(ranks->shared, 0, GRACE_S);
  return status;
}

static iso_status wait_for(void *self, iso_collective collective, int64_t step) {
  iso_ranks *ranks = self;
  const iso_status status = iso_shared_wait(ranks->shared, collective, step, ranks->plan.timeout_s);
  if (status == ISO_OK) return ISO_OK;
  return lose(ranks, say(ranks, status, "")); /* a lost rank is said by all */
}

/* What the lowest rank that failed says; by itself, if it could not say it before. */
static iso_status verdict(iso_ranks *ranks, iso_status status, int failed) {
  ranks->over = true;
  char who[32];
  (void)snprintf(who, sizeof who, "rank %d: ", ranks->rank);
  return failed == ranks->rank ? say(ranks, status, who) : status;
}

static iso_status gather_from_all(iso_ranks *ranks, channel which, int64_t step) {
  iso_gather_begin(ranks->gathers[which]);
  return wait_for(ranks, iso_gather_collective(ranks->gathers[which]), step);
}

/* What rank 0 said at the last meeting. */
static const note *heard(const iso_ranks *ranks) {
  return &ranks->board->notes[(ranks->meetings - 1) & 1][0];
}

/* All ranks come here; *failed is the lowest that has, with its status, or -1. */
static iso_status gather_statuses(iso_ranks *ranks, iso_status status, int *failed, iso_status *agreed) {
  const int turn = ranks->meetings++ & 1;
  note *notes = ranks->board->notes[turn];
  ranks->note.status = status;
  notes[ranks->rank] = ranks->note;
  ISO_TRY(gather_from_all(ranks, turn ? SECOND_MEETING : MEETING, ranks->step));
  *failed = 0;
  while (*failed < ranks->plan.count && notes[*failed].status == ISO_OK) ++*failed;
  if (*failed == ranks->plan.count) *failed = -1;
  *agreed = *failed < 0 ? ISO_OK : notes[*failed].status;
  return ISO_OK;
}

static iso_status make_gather(iso_ranks *ranks, channel which, const iso_gather_plan *plan, void *whole) {
  const iso_transport *transport = ranks->plan.hosts > 1 ? iso_world_transport(ranks->plan.world) : NULL;
  return iso_gather_create(plan, transport, iso_shared_signals(ranks->shared, which), whole, &ranks->gathers[which]);
}

/* All ranks come here; their statuses become one. */
static iso_status meet(iso_ranks *ranks, iso_status status) {
  int failed;
  iso_status agreed;
  ISO_TRY(gather_statuses(ranks, status, &failed, &agreed));
  return failed < 0 ? ISO_OK : verdict(ranks, agreed, failed);
}

/* `data` of rank 0 becomes that of all, by way of the region of each host's first rank; once for each host when its
 * ranks share it. */
static iso_status spread(iso_ranks *ranks, void *data, size_t bytes, bool shared) {
  const channel which = (channel)(SPREAD + ranks->spreads++);
  const iso_ranks_plan *p = &ranks->plan;
  const bool takes = shared ? p->numbers[0] == ranks->rank && ranks->rank != 0 : ranks->rank != 0;
  if (shared && p->hosts == 1) return ISO_OK;
  const size_t room = iso_ranks_own_bytes(p), most = bytes < room ? bytes : room;
  char *window = iso_shared_region(ranks->shared, p->numbers[0]);
  if (!bytes) return ISO_OK;
  for (int r = 1; r <= p->count; r++) ranks->from_zero[r] = (int64_t)most;
  const iso_gather_plan plan = {p->count, ranks->rank, ranks->from_zero, p->host, CHUNK, 1};
  ISO_TRY(make_gather(ranks, which, &plan, window));
  for (size_t at = 0; at < bytes;) {
    const size_t count = bytes - at < most ? bytes - at : most;
    if (ranks->rank == 0) memcpy(window, (char *)data + at, count);
    ISO_TRY(gather_from_all(ranks, which, ranks->step));
    if (takes) memcpy((char *)data + at, window, count);
    ISO_TRY(meet(ranks, ISO_OK));
    at += count;
  }
  return ISO_OK;
}

/* ---- a step, as exec calls it ---- */

static void beat(void *self) {
  iso_shared_beat(((iso_ranks *)self)->shared);
}

static void excuse(void *self, bool now) {
  iso_shared_excuse(((iso_ranks *)self)->shared, now);
}

static bool checks(const iso_ranks *ranks, int64_t step) {
  return ranks->check_every && step % ranks->check_every == 0;
}

static iso_status compare_weights(iso_ranks *ranks, int64_t step) {
  uint32_t weights[ISO_MOST_RANKS];
  bool sure;
  for (int r = 0; r < ranks->plan.count; r++) weights[r] = ranks->board->words[r].weights;
  const int odd = iso_ranks_odd(weights, ranks->plan.count, &sure);
  if (odd < 0) {
    ranks->checked_step = step - 1;
    return ISO_OK;
  }
  iso_differed *record = &ranks->differed.record;
  record->step = step;
  record->rank = odd;
  record->same_step = ranks->checked_step;
  ranks->over = true;
  return iso_ranks_differed_say(&ranks->differed, &ranks->plan, ranks->rank, weights, sure);
}

static iso_status compare(iso_ranks *ranks, int64_t step) {
  const word *words = ranks->board->words;
  for (int r = 0; r < ranks->plan.count; r++)
    if (words[r].status != ISO_OK) return verdict(ranks, words[r].status, r);
  if (checks(ranks, step)) ISO_TRY(compare_weights(ranks, step));
  for (int r = 1; r < ranks->plan.count; r++) {
    const bool same =
        words[r].step == words[0].step && words[r].scored == words[0].scored && words[r].batch == words[0].batch;
    if (same) continue;
    ranks->over = true;
    if (ranks->rank != 0) return ISO_ERR_MISMATCH; /* rank 0 says it */
    return iso_fail(
        ISO_ERR_MISMATCH,
        "step %lld: rank %d has read another batch than rank 0 (CRC32C %08x and %08x); has a source changed "
        "while the run reads it?",
        (long long)step, r, (unsigned)words[r].batch, (unsigned)words[0].batch);
  }
  return ISO_OK;
}

/* Rank 0 tells how all are. */
static void keep_health(iso_ranks *ranks) {
  const word *words = ranks->board->words;
  for (int r = 0; r < ranks->plan.count && ranks->rank == 0; r++) {
    ranks->budgets[r] = words[r].budget;
    ranks->evidence[r] = words[r].evidence;
  }
}

/* All have agreed on the step before at the same time, nearly: that is how far the clocks of two hosts are apart. */
static void keep_trace(iso_ranks *ranks) {
  const word *zero = &ranks->board->words[0];
  if (ranks->rank != 0) {
    ranks->trace = zero->trace;
    ranks->trace_base_s = zero->trace_base_s;
    if (ranks->plan.host[ranks->rank] != ranks->plan.host[0] && ranks->agreed_s > 0 && zero->agreed_s > 0)
      ranks->clock_s = ranks->agreed_s - zero->agreed_s;
  }
  ranks->agreed_s = iso_clock_s();
}

/* Before anything is reduced. By one thread: the reducer's in a step, else who computes. */
static iso_status agree_with(iso_ranks *ranks, const word *mine) {
  word *own = &ranks->board->words[ranks->rank];
  *own = *mine;
  own->budget = ranks->last;
  own->evidence = ranks->seen;
  own->reduction = ranks->flat->reduced == ranks->flat->reductions[1];
  own->trace = ranks->trace;
  own->trace_base_s = ranks->trace_base_s;
  own->agreed_s = ranks->agreed_s;
  ISO_TRY(gather_from_all(ranks, WORDS, mine->step));
  keep_health(ranks);
  keep_trace(ranks);
  ISO_TRY(compare(ranks, mine->step));
  ranks->reduction = ranks->board->words[0].reduction;
  return ISO_OK;
}

/* Of what this rank has a copy of; of what its host has, when that is nothing. */
static uint32_t crc_of_weights(const iso_ranks *ranks) {
  const iso_flat *flat = ranks->flat;
  const size_t elements = (size_t)flat->options.elements;
  if (ranks->flat_shared.master && flat->weights && !ranks->flat_shared.weights)
    return iso_crc32c(0, flat->weights, elements * sizeof *flat->weights);
  return iso_crc32c(0, flat->master, elements * sizeof *flat->master);
}

static iso_status agree(void *self, int *reduction) {
  iso_ranks *ranks = self;
  const iso_step *step = ranks->now;
  const size_t bytes = ranks->rows * sizeof(int32_t);
  word mine = {.step = ranks->step + 1, .scored = step->scored};
  mine.batch = iso_crc32c(iso_crc32c(0, step->inputs.tokens, bytes), step->inputs.labels, bytes);
  if (checks(ranks, mine.step)) mine.weights = crc_of_weights(ranks);
  ISO_TRY(agree_with(ranks, &mine));
  *reduction = ranks->reduction;
  return ISO_OK;
}

static void begin(void *self, const iso_step *step) {
  iso_ranks *ranks = self;
  ranks->now = step;
  iso_reducer_begin(ranks->reducer, ranks->step + 1, step->scored);
}

static void part(void *self, int64_t first, int64_t last) {
  iso_reducer_part(((iso_ranks *)self)->reducer, first, last);
}

/* What is known only when all leaves are computed. */
static iso_status end_together(iso_ranks *ranks) {
  const size_t first = (size_t)ranks->exchange.first, count = (size_t)ranks->exchange.count;
  memcpy(ranks->board_losses + first, ranks->losses + first, count * sizeof *ranks->losses);
  ranks->board->ends[ranks->rank].stop = ranks->rank == 0 && *ranks->stop_signal != 0;
  ISO_TRY(gather_from_all(ranks, LOSSES, ranks->step + 1));
  if (ranks->plan.hosts > 1) ISO_TRY(gather_from_all(ranks, ENDS, ranks->step + 1));
  memcpy(ranks->losses, ranks->board_losses, (size_t)ranks->plan.workers * sizeof *ranks->losses);
  return ISO_OK;
}

static iso_status reduce(void *self, const iso_step *step) {
  iso_ranks *ranks = self;
  (void)step;
  const double began = iso_clock_s();
  iso_status status = iso_reducer_finish(ranks->reducer);
  if (status == ISO_OK) status = end_together(ranks);
  ranks->wait_s += iso_clock_s() - began;
  ISO_TRY(status);
  iso_flat_reduction_use(ranks->flat, ranks->reduction);
  ranks->step++;
  ranks->stops = ranks->board->ends[0].stop;
  if (ranks->stops || ranks->step >= ranks->last_step) ranks->over = true;
  return ISO_OK;
}

/* A snapshot that still reads the state has copied it aside, on the rank that writes it. */
static iso_status await_others(iso_ranks *ranks, channel which) {
  const double began = iso_clock_s();
  const iso_status status = gather_from_all(ranks, which, ranks->step);
  ranks->wait_s += iso_clock_s() - began;
  return status;
}

static iso_status update(void *self) {
  return await_others(self, UPDATE);
}

static iso_status updated(void *self) {
#ifdef ISO_SABOTAGE_DIE_UPDATING /* tests/cli/ranks.sh: the state of a step that is half taken must not be stored */
  const iso_ranks *rank = self;
  if (rank->rank == 1 && rank->step == 10) {
    memset(rank->flat->master + rank->flat->own_begin, 0, 4096);
    (void)raise(SIGKILL);
  }
#endif
  return await_others(self, UPDATED);
}

/* ---- opening ---- */

static iso_status make_collectives(iso_ranks *ranks) {
  const iso_ranks_plan *p = &ranks->plan;
  const int n = p->count, me = ranks->rank;
  board *b = ranks->board;
  const int64_t element = (int64_t)iso_dtype_size(p->gradient);
  for (int r = 0; r <= n; r++) {
    ranks->by_rank[r] = r;
    ranks->by_leaf[r] = p->first_leaf[r];
  }
  for (int r = 0; r < n; r++) ranks->pieces[r] = iso_shared_region(ranks->shared, r);
  const int64_t at_once = p->hosts > 1 && p->hosts == n ? PART : CHUNK;
  const iso_reduce_plan reduction = {n, me, (int)p->workers, p->first_leaf, ranks->by_element, p->host, at_once};
  ISO_TRY(iso_reduce_create(&reduction, p->hosts > 1 ? iso_world_transport(p->world) : NULL,
                            iso_shared_signals(ranks->shared, REDUCTION), ranks->pieces, p->elements, &ranks->reduce));
  const iso_gather_plan gradient = {n, me, ranks->by_element, p->host, CHUNK, element};
  const iso_gather_plan squares = {n, me, ranks->by_block, p->host, CHUNK, sizeof(double)};
  const iso_gather_plan losses = {n, me, ranks->by_leaf, p->host, CHUNK, sizeof(double)};
  const iso_gather_plan words = {n, me, ranks->by_rank, p->host, CHUNK, sizeof(word)};
  const iso_gather_plan ends = {n, me, ranks->by_rank, p->host, CHUNK, sizeof(end)};
  const iso_gather_plan notes = {n, me, ranks->by_rank, p->host, CHUNK, sizeof(note)};
  ISO_TRY(make_gather(ranks, GRADIENT, &gradient, ranks->flat_shared.reductions[0]));
  ISO_TRY(make_gather(ranks, SECOND_GRADIENT, &gradient, ranks->flat_shared.reductions[p->log ? 1 : 0]));
  ISO_TRY(make_gather(ranks, SQUARES, &squares, ranks->flat_shared.squares));
  ISO_TRY(make_gather(ranks, LOSSES, &losses, ranks->board_losses));
  ISO_TRY(make_gather(ranks, WORDS, &words, b->words));
  ISO_TRY(make_gather(ranks, ENDS, &ends, b->ends));
  const iso_gather_plan nothing = {n, me, ranks->nothing, p->host, CHUNK, 1};
  ISO_TRY(make_gather(ranks, UPDATE, &nothing, b));
  ISO_TRY(make_gather(ranks, UPDATED, &nothing, b));
  ISO_TRY(make_gather(ranks, MEETING, &notes, b->notes[0]));
  return make_gather(ranks, SECOND_MEETING, &notes, b->notes[1]);
}

iso_status iso_ranks_create_memory(const iso_ranks_plan *plan, int *fd) {
  const iso_shared_layout layout = {.ranks = plan->numbers,
                                    .count = plan->mates,
                                    .channels = CHANNELS,
                                    .rank_bytes = iso_ranks_own_bytes(plan),
                                    .common_bytes = iso_ranks_common_bytes(plan)};
  return iso_shared_create(&layout, fd);
}

/* Of the host's state: all, or a part for each of its ranks; no two write to one page. */
static void share_update(iso_ranks *ranks) {
  const iso_ranks_plan *p = &ranks->plan;
  iso_flat_shared *shared = &ranks->flat_shared;
  enum { PAGE_ELEMENTS = ALIGN / sizeof(iso_bf16) };
  const int64_t pages = (p->elements + PAGE_ELEMENTS - 1) / PAGE_ELEMENTS;
  int place = 0;
  shared->own_begin = 0;
  shared->own_end = p->elements;
  if (!p->zero) return;
  while (p->numbers[place] != ranks->rank) place++;
  shared->own_begin = pages * place / p->mates * PAGE_ELEMENTS;
  if (place + 1 < p->mates) shared->own_end = pages * (place + 1) / p->mates * PAGE_ELEMENTS;
}

iso_status iso_ranks_open(const iso_ranks_plan *plan, int fd, int rank, iso_ranks **out) {
  *out = NULL;
  iso_ranks *ranks = calloc(1, sizeof *ranks);
  if (!ranks) return iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %zu bytes", rank, sizeof *ranks);
  ranks->plan = *plan;
  ranks->rank = rank;
  ranks->losses = calloc((size_t)plan->workers, sizeof *ranks->losses);
  ranks->order = calloc((size_t)iso_reducer_buckets(plan->elements, plan->workers) + 1, sizeof *ranks->order);
  iso_status status = iso_shared_open(fd, rank, &ranks->shared);
  if (status == ISO_OK && (!ranks->losses || !ranks->order))
    status = iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %lld virtual workers", rank, (long long)plan->workers);
  if (status == ISO_OK) {
    const int first = plan->first_leaf[rank], count = plan->first_leaf[rank + 1] - first;
    iso_shared_excuse(ranks->shared, true);
    lay_out(&ranks->plan, ranks);
    ranks->flat_shared.gradients = iso_shared_region(ranks->shared, rank);
    ranks->flat_shared.buffers = iso_leaf_buffers(first, count);
    ranks->exchange = (iso_exchange){.self = ranks,
                                     .first = first,
                                     .count = count,
                                     .losses = ranks->losses,
                                     .begin = begin,
                                     .beat = beat,
                                     .excuse = excuse,
                                     .part = part,
                                     .reduce = reduce,
                                     .update = plan->zero ? update : NULL,
                                     .updated = plan->zero ? updated : NULL};
    share_update(ranks);
    status = make_collectives(ranks);
  }
  if (status == ISO_OK && plan->world)
    status = iso_pulse_start(plan->world, ranks->shared, plan->timeout_s, &ranks->pulse);
  if (status == ISO_OK) {
    *out = ranks;
    return ISO_OK;
  }
  iso_ranks_close(&ranks);
  return status;
}

void iso_ranks_close(iso_ranks **out) {
  iso_ranks *ranks = *out;
  if (!ranks) return;
  iso_differed_release(ranks->differed.reserve);
  iso_reducer_destroy(&ranks->reducer);
  iso_reduce_destroy(&ranks->reduce);
  for (int i = 0; i < CHANNELS; i++) iso_gather_destroy(&ranks->gathers[i]);
  iso_pulse_stop(&ranks->pulse, ranks->lost);
  iso_shared_close(&ranks->shared);
  free(ranks->losses);
  free(ranks->order);
  free(ranks);
  *out = NULL;
}

static iso_status leave_together(iso_ranks *ranks, iso_status status) {
  int failed;
  iso_status agreed;
  ISO_TRY(gather_statuses(ranks, status, &failed, &agreed));
  return agreed;
}

iso_status iso_ranks_leave(iso_ranks *ranks, iso_status status) {
  if (!ranks || ranks->lost) return status;
  /* Before the first step the others wait to hear whether there is one. */
  if (ranks->rank == 0 && !ranks->begun && !ranks->over) {
    ranks->note.goes_on = false;
    (void)meet(ranks, status); /* said where it came about */
  }
  return ranks->plan.world && !ranks->lost ? leave_together(ranks, status) : status;
}

bool iso_ranks_lost(const iso_ranks *ranks) {
  return ranks && ranks->lost;
}

/* mpirun ends the others when one has died; the kernel's word may come later than its signal. */
static const double LOOK_S = 0.3;

iso_status iso_ranks_stopped(iso_ranks *ranks) {
  if (!ranks || !ranks->plan.world) return ISO_STOPPED;
  const iso_status status = iso_shared_look(ranks->shared, ranks->step, LOOK_S);
  return status == ISO_OK ? ISO_STOPPED : lose(ranks, status);
}

int iso_ranks_number(const iso_ranks *ranks) {
  return ranks ? ranks->rank : 0;
}

void iso_ranks_hurry(iso_ranks *ranks, const volatile sig_atomic_t *hurry) {
  iso_shared_hurry(ranks->shared, hurry);
}

int iso_ranks_at_once(const iso_ranks *ranks, int threads) {
  const int most = ranks->plan.processors / threads;
  return most < 1 ? 1 : most < ranks->plan.count ? most : ranks->plan.count;
}

const iso_ranks_plan *iso_ranks_plan_get(const iso_ranks *ranks) {
  return &ranks->plan;
}

const iso_flat_shared *iso_ranks_flat(const iso_ranks *ranks) {
  return &ranks->flat_shared;
}

/* ---- beginning ---- */

/* The order of the buckets is rank 0's program's. */
static iso_status start_reducer(iso_ranks *ranks, const iso_device *device, const iso_engine *engine) {
  const iso_ranks_plan *p = &ranks->plan;
  const iso_flat *flat = ranks->flat;
  const int buckets = iso_reducer_buckets(p->elements, p->workers);
  iso_status status = ranks->rank == 0 ? iso_reducer_order(engine->program, p->workers, ranks->order) : ISO_OK;
  ISO_TRY(meet(ranks, status));
  ISO_TRY(spread(ranks, ranks->order, (size_t)buckets * sizeof *ranks->order, false));
  const iso_reducer_options options = {
      .ranks = p->count,
      .elements = p->elements,
      .bucket = iso_handover_elements(p->elements, p->workers),
      .order = ranks->order,
      .owners = ranks->by_element,
      .block_owners = ranks->by_block,
      .reduce = ranks->reduce,
      .gradients = {ranks->gathers[GRADIENT], ranks->gathers[SECOND_GRADIENT]},
      .gather_squares = p->hosts > 1 ? ranks->gathers[SQUARES] : NULL,
      .reductions = {ranks->flat_shared.reductions[0], ranks->flat_shared.reductions[1]},
      .squares = flat->squares,
      .gradient = p->gradient,
      .kernels = iso_device_kernels(device),
      .self = ranks,
      .agree = agree,
      .wait = wait_for,
      .handover = ranks->handover,
      .handover_context = ranks->handover_context,
  };
  return meet(ranks, iso_reducer_create(&options, &ranks->reducer));
}

void iso_ranks_handover_set(iso_ranks *ranks, iso_exec_handover *handover, void *context) {
  ranks->handover = handover;
  ranks->handover_context = context;
}

iso_status iso_ranks_await(iso_ranks *ranks, bool *goes_on) {
  *goes_on = false;
  ISO_TRY(meet(ranks, ISO_OK));
  *goes_on = heard(ranks)->goes_on;
  return ISO_OK;
}

iso_status iso_ranks_announce(iso_ranks *ranks) {
  ranks->note.goes_on = true;
  ranks->begun = true;
  return meet(ranks, ISO_OK);
}

iso_status iso_ranks_begin(iso_ranks *ranks, iso_run *run, iso_status status, int64_t last_step,
                           const volatile sig_atomic_t *stop_signal) {
  note *mine = &ranks->note;
  iso_flat *flat = &run->engine.flat;
  iso_snapshot_info *at = &run->at;
  if (status == ISO_OK && flat->options.elements != ranks->plan.elements)
    status = iso_fail(ISO_ERR_INTERNAL, "rank %d: the model has %lld elements, the ranks' memory is for %lld",
                      ranks->rank, (long long)flat->options.elements, (long long)ranks->plan.elements);
  if (ranks->rank == 0) {
    mine->step = at->step;
    mine->adam_step = at->adam_step;
    mine->tokens = at->tokens;
    mine->refused = at->refused;
    mine->incarnation = run->incarnation.number;
    mine->logged = run->wal != NULL;
    if (status == ISO_OK && ranks->plan.count > 1) status = iso_ranks_differed_begin(&ranks->differed, run);
  }
  ISO_TRY(meet(ranks, status));
  const note zero = *heard(ranks);
  const size_t state = (size_t)flat->options.elements * sizeof(float);
  const bool shared = ranks->flat_shared.master != NULL;
  ISO_TRY(spread(ranks, flat->master, state, shared));
  ISO_TRY(spread(ranks, flat->moment1, state, shared));
  ISO_TRY(spread(ranks, flat->moment2, state, shared));
  ISO_TRY(spread(ranks, at->cursors, at->cursor_count * sizeof *at->cursors, false));
  at->step = ranks->step = ranks->checked_step = zero.step;
  at->adam_step = zero.adam_step;
  at->tokens = zero.tokens;
  at->refused = zero.refused;
  ranks->differed.run = run->config.run;
  ranks->differed.record = (iso_differed){.incarnation = zero.incarnation, .logged = zero.logged};
  if (ranks->rank == 0 && ranks->plan.start > 1)
    iso_note("start %d of at most %d: goes on behind step %lld", ranks->plan.start, ranks->plan.starts,
             (long long)at->step);
  ranks->check_every = run->config.parallel.check_every;
  /* Rank 0's compute copy is made; one that is shared is made by the first rank of each other host. */
  if (ranks->flat_shared.weights ? ranks->rank == ranks->plan.numbers[0] && ranks->rank != 0 : ranks->rank != 0)
    iso_flat_refresh(flat, run->device);
  return iso_ranks_attach(ranks, run->device, &run->engine, run->config.batch.sequences * run->config.data.sequence,
                          last_step, stop_signal);
}

iso_status iso_ranks_attach(iso_ranks *ranks, const iso_device *device, iso_engine *engine, int64_t rows,
                            int64_t last_step, const volatile sig_atomic_t *stop_signal) {
  ranks->flat = &engine->flat;
  ranks->last_step = last_step;
  ranks->stop_signal = stop_signal;
  if (ranks->rank == 0) iso_shared_hurry(ranks->shared, stop_signal);
  ranks->rows = (size_t)rows;
  ISO_TRY(start_reducer(ranks, device, engine));
  iso_exec_exchange_set(engine->exec, &ranks->exchange);
  return ISO_OK;
}

iso_status iso_ranks_ready(iso_ranks *ranks, iso_status status) {
  return meet(ranks, status);
}

bool iso_ranks_stop(const iso_ranks *ranks) {
  return ranks->stops;
}

iso_status iso_ranks_refuse(iso_ranks *ranks, iso_status status) {
  if (ranks->over) return status;
  const word mine = {.status = status, .step = ranks->step + 1};
  (void)agree_with(ranks, &mine); /* no step is taken */
  ranks->over = true;
  return status;
}

int64_t iso_ranks_checked(const iso_ranks *ranks) {
  return ranks && ranks->plan.count > 1 && ranks->check_every ? ranks->checked_step : -1;
}

double iso_ranks_waited(iso_ranks *ranks) {
  const double waited = ranks->wait_s;
  ranks->wait_s = 0;
  return waited;
}

void iso_ranks_health_set(iso_ranks *ranks, const iso_budget *budget, const iso_evidence *evidence) {
  ranks->last = *budget;
  ranks->seen = *evidence;
}

void iso_ranks_health_get(const iso_ranks *ranks, iso_budget *budgets, iso_evidence *evidence) {
  memcpy(budgets, ranks->budgets, (size_t)ranks->plan.count * sizeof *budgets);
  memcpy(evidence, ranks->evidence, (size_t)ranks->plan.count * sizeof *evidence);
}

void iso_ranks_trace_set(iso_ranks *ranks, int64_t number, double base_s) {
  ranks->trace = number;
  ranks->trace_base_s = base_s;
}

int64_t iso_ranks_trace_get(const iso_ranks *ranks, double *base_s) {
  *base_s = ranks->trace_base_s + ranks->clock_s;
  return ranks->trace;
}
