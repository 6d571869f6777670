/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the ranks of one host share, the signals in it, and waiting for each other with an end.
 *
 * The memory is a memfd: a file that has no name and ends with the last process that has it, however that ends. A head
 * (layout, the verdict, a slot for each rank, signals) is followed by the region of all and one region a rank, which
 * that rank allocates, so that it lies in memory near it and running out of it is an error, not a SIGBUS.
 *
 * Invariants
 *  1. Nothing in the memory is ever locked, so a process that dies or stops anywhere leaves nothing that blocks.
 *  2. While a process is rank r it holds an open-file-description lock on byte r's place of the memfd. The kernel drops
 *     it when the process ends; unlike a process number it is not given to another. Joined and not locked is gone.
 *  3. There is one verdict, set once: which rank did not come, why, and who says so. Who waits follows the chain of
 *     waiting ranks to its end, so the verdict names the rank that all wait for, not one that waits itself.
 *  4. A rank is only said to be gone after a poll that came later than the kernel's word, since it may have done its
 *     part before it went.
 *
 * Ranks of other hosts are waited for in the same way, by signs that somebody else brings (iso_shared_look_away).
 * Processes that forge the memory's content are not defended against.
 */
#include "comm/comm.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 3, MOST_COUNT = 4096, MOST_CHANNELS = 65536, PAGE = 65536 /* the largest of common systems */ };
static const char magic[8] = "isoshm\n";

enum { ABSENT, JOINED, LEFT };
typedef struct slot { /* written by its rank alone */
  int rank;
  _Atomic int state;
  _Atomic int64_t process;
  iso_signs signs;
  char pad[8]; /* to a cache line */
} slot;
static_assert(sizeof(slot) == 64, "a cache line each");

enum { NOTHING, GONE, HAS_LEFT, SILENT, VANISHED };
typedef struct head {
  char magic[8];
  uint32_t version;
  int32_t count, channels;
  uint64_t rank_bytes, common_bytes, total_bytes; /* regions rounded up to pages */
  _Atomic uint64_t verdict;                       /* why << 48 | who says so << 24 | rank; 0: none */
  char pad[8];
  slot slots[]; /* [count]; then signals [count][channels][kinds], a line's multiple for each rank */
} head;
static_assert(offsetof(head, slots) % 64 == 0, "slots on cache lines");

typedef struct channel {
  iso_shared *shared;
  int number;
} channel;

struct iso_shared {
  int fd;
  head *head;
  char *base; /* of the mapping */
  slot *own;
  int own_place;
  int *places; /* [ranks]: place of a rank among those of this host; -1: of another */
  int ranks;   /* highest number + 1 */
  iso_away away;
  const volatile sig_atomic_t *hurry; /* may be NULL */
  channel *channels;
  iso_signals *signals;
};

static size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/* Bytes of one rank's signals. */
static size_t signal_bytes(int channels) {
  return round_up((size_t)channels * ISO_SIGNAL_KINDS * sizeof(uint64_t), 64);
}

static size_t head_bytes(int count, int channels) {
  return round_up(sizeof(head) + (size_t)count * (sizeof(slot) + signal_bytes(channels)), PAGE);
}

/* ---- making ---- */

static iso_status check_layout(const iso_shared_layout *l) {
  const size_t most = (size_t)1 << 46;
  bool sound = l->count > 0 && l->count <= MOST_COUNT && l->channels > 0 && l->channels <= MOST_CHANNELS &&
               l->common_bytes <= most && l->rank_bytes <= most / (size_t)l->count && l->ranks[0] >= 0;
  for (int i = 1; sound && i < l->count; i++) sound = l->ranks[i - 1] < l->ranks[i];
  if (sound && l->ranks[l->count - 1] < 1 << 24) return ISO_OK;
  return iso_fail(ISO_ERR_INTERNAL,
                  "shared memory: a layout for %d ranks with %d channels, %zu bytes each and %zu in common contradicts "
                  "itself",
                  l->count, l->channels, l->rank_bytes, l->common_bytes);
}

/* The pages are there, or it fails. (Asked for more than there is, fallocate of a memfd goes on until processes are
 * killed: it has no limit of its own.) */
static iso_status reserve(int fd, size_t at, size_t bytes, const char *what) {
  if (!bytes) return ISO_OK;
  int error = iso_memory_available() < (int64_t)bytes ? ENOMEM : 0;
  while (!error && fallocate(fd, 0, (off_t)at, (off_t)bytes)) error = errno == EINTR ? 0 : errno;
  if (!error) return ISO_OK;
  return iso_fail(ISO_ERR_MEMORY, "cannot have %zu bytes of shared memory for %s: %s; free memory, or raise the limit",
                  bytes, what, strerror(error));
}

static iso_status fill(int fd, const iso_shared_layout *l) {
  const size_t common = round_up(l->common_bytes, PAGE), each = round_up(l->rank_bytes, PAGE);
  const size_t begin = head_bytes(l->count, l->channels), total = begin + common + each * (size_t)l->count;
  if (ftruncate(fd, (off_t)total) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
    return iso_fail(ISO_ERR_IO, "cannot make %zu bytes of shared memory: %s", total, strerror(errno));
  ISO_TRY(reserve(fd, 0, begin + common, "the ranks of this host"));
  head *h = mmap(NULL, begin, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (h == MAP_FAILED)
    return iso_fail(ISO_ERR_MEMORY, "cannot map %zu bytes of shared memory: %s", begin, strerror(errno));
  h->version = VERSION;
  h->count = l->count;
  h->channels = l->channels;
  h->rank_bytes = each;
  h->common_bytes = common;
  h->total_bytes = total;
  for (int i = 0; i < l->count; i++) h->slots[i].rank = l->ranks[i];
  memcpy(h->magic, magic, sizeof magic);
  munmap(h, begin);
  return ISO_OK;
}

iso_status iso_shared_create(const iso_shared_layout *layout, int *fd) {
  *fd = -1;
  ISO_TRY(check_layout(layout));
  const int made = memfd_create("isotach", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0) return iso_fail(ISO_ERR_IO, "cannot make shared memory (memfd_create): %s", strerror(errno));
  const iso_status status = fill(made, layout);
  if (status != ISO_OK) {
    close(made);
    return status;
  }
  *fd = made;
  return ISO_OK;
}

/* ---- opening ---- */

/* An open file description of our own: the lock is of this one, not of one shared with others by fork. */
static iso_status reopen(int fd, int *out) {
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  *out = open(path, O_RDWR | O_CLOEXEC);
  if (*out >= 0) return ISO_OK;
  return iso_fail(ISO_ERR_IO, "cannot open shared memory by %s: %s; /proc must be mounted", path, strerror(errno));
}

static iso_status map(iso_shared *s) {
  struct stat stat;
  head h;
  const int seals = fcntl(s->fd, F_GET_SEALS);
  bool sound = fstat(s->fd, &stat) == 0 && seals >= 0 && (seals & F_SEAL_SHRINK) &&
               pread(s->fd, &h, sizeof h, 0) == (ssize_t)sizeof h && memcmp(h.magic, magic, sizeof magic) == 0 &&
               h.version == VERSION && h.count > 0 && h.count <= MOST_COUNT && h.channels > 0 &&
               h.channels <= MOST_CHANNELS;
  sound = sound && h.total_bytes == (uint64_t)stat.st_size && h.total_bytes >= head_bytes(h.count, h.channels) &&
          h.common_bytes <= h.total_bytes && h.rank_bytes <= h.total_bytes / (uint64_t)h.count &&
          head_bytes(h.count, h.channels) + h.common_bytes + h.rank_bytes * (uint64_t)h.count == h.total_bytes;
  if (!sound)
    return iso_fail(ISO_ERR_FORMAT, "what was given as shared memory was not made by version %d of it", VERSION);
  s->base = mmap(NULL, h.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
  if (s->base == MAP_FAILED) {
    s->base = NULL;
    return iso_fail(ISO_ERR_MEMORY, "cannot map %" PRIu64 " bytes of shared memory: %s", h.total_bytes,
                    strerror(errno));
  }
  s->head = (head *)s->base;
  return ISO_OK;
}

static iso_status list_places(iso_shared *s, int rank) {
  const head *h = s->head;
  s->ranks = h->slots[h->count - 1].rank + 1;
  s->own_place = -1;
  for (int i = 0; i < h->count; i++) {
    if (h->slots[i].rank < 0 || h->slots[i].rank >= s->ranks)
      return iso_fail(ISO_ERR_FORMAT, "shared memory: place %d of %d has rank %d", i, h->count, h->slots[i].rank);
    if (h->slots[i].rank == rank) s->own_place = i;
  }
  if (s->own_place < 0)
    return iso_fail(ISO_ERR_NOT_FOUND, "shared memory: rank %d is not one of the %d ranks of this host", rank,
                    h->count);
  s->own = &s->head->slots[s->own_place];
  s->places = malloc((size_t)s->ranks * sizeof *s->places);
  s->channels = calloc((size_t)h->channels, sizeof *s->channels);
  s->signals = calloc((size_t)h->channels, sizeof *s->signals);
  if (!s->places || !s->channels || !s->signals)
    return iso_fail(ISO_ERR_MEMORY, "shared memory: no memory for %d channels", h->channels);
  for (int i = 0; i < s->ranks; i++) s->places[i] = -1;
  for (int i = 0; i < h->count; i++) s->places[h->slots[i].rank] = i;
  return ISO_OK;
}

static struct flock lock_of(int place) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
}

static iso_status join(iso_shared *s, int rank) {
  struct flock lock = lock_of(s->own_place);
  if (fcntl(s->fd, F_OFD_SETLK, &lock)) {
    if (errno != EAGAIN && errno != EACCES)
      return iso_fail(ISO_ERR_IO, "cannot lock rank %d's place in shared memory: %s", rank, strerror(errno));
    return iso_fail(ISO_ERR_BUSY, "process %lld is rank %d already", (long long)s->own->process, rank);
  }
  if (s->own->state != ABSENT)
    return iso_fail(ISO_ERR_BUSY,
                    "process %lld was rank %d and is gone; nobody can go on in its place: start all ranks again",
                    (long long)s->own->process, rank);
  char what[32];
  (void)snprintf(what, sizeof what, "rank %d", rank);
  const size_t region = (size_t)((char *)iso_shared_region(s, rank) - s->base);
  ISO_TRY(reserve(s->fd, region, s->head->rank_bytes, what));
  s->own->process = getpid();
  s->own->state = JOINED;
  return ISO_OK;
}

static void raise_signal(void *self, int kind, uint64_t round);
static bool signal_reached(void *self, int rank, int kind, uint64_t round);

iso_status iso_shared_open(int fd, int rank, iso_shared **out) {
  *out = NULL;
  iso_shared *s = calloc(1, sizeof *s);
  if (!s) return iso_fail(ISO_ERR_MEMORY, "shared memory: no memory for rank %d", rank);
  iso_status status = reopen(fd, &s->fd);
  if (status == ISO_OK) status = map(s);
  if (status == ISO_OK) status = list_places(s, rank);
  if (status == ISO_OK) status = join(s, rank);
  if (status != ISO_OK) {
    s->own = NULL; /* it is not this rank that leaves */
    iso_shared_close(&s);
    return status;
  }
  for (int i = 0; i < s->head->channels; i++) {
    s->channels[i] = (channel){s, i};
    s->signals[i] = (iso_signals){&s->channels[i], raise_signal, signal_reached};
  }
  *out = s;
  return ISO_OK;
}

void iso_shared_close(iso_shared **shared) {
  iso_shared *s = *shared;
  if (!s) return;
  if (s->own) s->own->state = LEFT;
  if (s->base) munmap(s->base, s->head->total_bytes);
  if (s->fd >= 0) close(s->fd); /* and the lock */
  free(s->places);
  free(s->channels);
  free(s->signals);
  free(s);
  *shared = NULL;
}

static int place_of(const iso_shared *s, int rank) {
  return rank >= 0 && rank < s->ranks ? s->places[rank] : -1;
}

/* NULL: nothing is known of it. */
static const iso_signs *signs_of(const iso_shared *s, int rank) {
  const int place = place_of(s, rank);
  return place >= 0 ? &s->head->slots[place].signs : s->away.signs ? &s->away.signs[rank] : NULL;
}

void iso_shared_look_away(iso_shared *s, const iso_away *away) {
  s->away = away ? *away : (iso_away){0};
}

void iso_shared_hurry(iso_shared *s, const volatile sig_atomic_t *hurry) {
  s->hurry = hurry;
}

iso_signs *iso_shared_signs(const iso_shared *s) {
  return &s->own->signs;
}

uint64_t iso_shared_verdict(const iso_shared *s) {
  return s->head->verdict;
}

void iso_shared_verdict_adopt(iso_shared *s, uint64_t verdict) {
  uint64_t none = 0;
  atomic_compare_exchange_strong(&s->head->verdict, &none, verdict);
}

void *iso_shared_common(const iso_shared *s) {
  return s->base + head_bytes(s->head->count, s->head->channels);
}

void *iso_shared_region(const iso_shared *s, int rank) {
  const int place = place_of(s, rank);
  if (place < 0) return NULL;
  return (char *)iso_shared_common(s) + s->head->common_bytes + (size_t)place * s->head->rank_bytes;
}

/* ---- signals ---- */

static _Atomic uint64_t *signal_at(const channel *c, int place, int kind) {
  const head *h = c->shared->head;
  char *at =
      c->shared->base + sizeof(head) + (size_t)h->count * sizeof(slot) + (size_t)place * signal_bytes(h->channels);
  return (_Atomic uint64_t *)at + (size_t)c->number * ISO_SIGNAL_KINDS + kind;
}

static void raise_signal(void *self, int kind, uint64_t round) {
  const channel *c = self;
  atomic_store_explicit(signal_at(c, c->shared->own_place, kind), round, memory_order_release);
}

static bool signal_reached(void *self, int rank, int kind, uint64_t round) {
  const channel *c = self;
  const int place = place_of(c->shared, rank);
  return place >= 0 && atomic_load_explicit(signal_at(c, place, kind), memory_order_acquire) >= round;
}

const iso_signals *iso_shared_signals(const iso_shared *s, int number) {
  return &s->signals[number];
}

/* ---- waiting ---- */

static const int64_t look_every_ns = 10000000;  /* the kernel is asked whether a rank is there */
static const int64_t vanished_ns = 300000000;   /* several pulses */
static const int64_t least_away_ns = 100000000; /* who waits is seen more often than that, on a busy machine too */

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Awake for some tens of microseconds, which is what ranks at one task differ by; then for others, then asleep. */
static void rest(int idle) {
  if (idle < 200) {
    for (int i = 0; i < 4; i++) __builtin_ia32_pause();
    return;
  }
  if (idle < 300) {
    sched_yield();
    return;
  }
  const struct timespec pause = {.tv_nsec = idle < 1000 ? 50000 : 500000};
  nanosleep(&pause, NULL);
}

/* What is to be said of a rank: NOTHING, GONE or HAS_LEFT. */
static int look(const iso_shared *s, int rank) {
  const int place = place_of(s, rank);
  if (place < 0 || place == s->own_place) return NOTHING;
  const slot *other = &s->head->slots[place];
  struct flock lock = lock_of(place);
  if (other->state == JOINED && fcntl(s->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK &&
      other->state == JOINED)
    return GONE;
  return other->state == LEFT ? HAS_LEFT : NOTHING;
}

/* The rank at the end of the chain that begins with `rank`: it does not wait, or has not been seen to since `since`. */
static int end_of_chain(const iso_shared *s, int rank, int64_t since, bool *circle) {
  const int first = rank;
  *circle = false;
  for (int i = 0; i < MOST_COUNT && rank != s->own->rank; i++) {
    const iso_signs *other = signs_of(s, rank);
    if (!other) return rank;
    const int64_t next = other->awaits;
    if (!next || other->beat < since || look(s, rank) != NOTHING) return rank;
    rank = (int)next - 1;
  }
  *circle = true;
  return first;
}

static void accuse(iso_shared *s, int rank, int why) {
  iso_shared_verdict_adopt(s, (uint64_t)why << 48 | (uint64_t)s->own->rank << 24 | (uint64_t)rank);
}

/* Says the verdict as this rank sees it. */
static iso_status tell(const iso_shared *s, const char *what, int64_t step, double timeout_s) {
  const uint64_t verdict = s->head->verdict;
  const int rank = verdict & 0xffffff, by = verdict >> 24 & 0xffffff, why = (int)(verdict >> 48);
  const int me = s->own->rank, place = place_of(s, rank);
  if (rank == me)
    return iso_fail(
        ISO_ERR_IO,
        "rank %d, in %s of step %lld: rank %d has given this rank up, since it did nothing for %g s; what it "
        "does now counts for nothing: start all ranks again",
        me, what, (long long)step, by, timeout_s);
  char which[128] = "", host[65] = "?", silent[48], said[32] = "";
  if (place >= 0 && gethostname(host, sizeof host - 1)) (void)snprintf(host, sizeof host, "?");
  if (place < 0)
    (void)snprintf(which, sizeof which, " (host %.64s)", s->away.name ? s->away.name(s->away.self, rank) : "?");
  else if (s->head->slots[place].state != ABSENT)
    (void)snprintf(which, sizeof which, " (host %s, process %lld)", host, (long long)s->head->slots[place].process);
  (void)snprintf(silent, sizeof silent, "did nothing for %g s", timeout_s);
  if (by != me) (void)snprintf(said, sizeof said, ", says rank %d", by);
  return iso_fail(ISO_ERR_IO, "rank %d, in %s of step %lld: rank %d%s %s%s; %s", me, what, (long long)step, rank, which,
                  why == GONE       ? "is gone"
                  : why == HAS_LEFT ? "has left"
                  : why == VANISHED ? "is not heard of any more"
                                    : silent,
                  said,
                  why == SILENT ? "it is stopped or too slow: look at it, then start all ranks again"
                                : "see what it says, then start all ranks again");
}

/* What a wait has seen since its collective last moved. */
typedef struct watch {
  int64_t timeout_ns;
  int idle;              /* polls */
  int64_t since, looked; /* ns */
  int suspect;           /* this rank is gone or has left: one more poll decides; -1: none */
} watch;

/* Since when a rank has shown nothing of itself, from `since` on; now: it need not. */
static int64_t silent_since(const iso_shared *s, int rank, int64_t since, int64_t now) {
  const iso_signs *other = signs_of(s, rank);
  if (!other) return since;
  const int64_t work = other->work, beat = other->beat, last = work > beat ? work : beat;
  const int64_t shown = !other->excused ? last : other->alive ? other->alive : now;
  return shown > since ? shown : since;
}

/* The launcher has asked for the end, and a rank of another host is not heard of any more. */
static bool is_vanished(const iso_shared *s, int rank, int64_t now) {
  const bool hurry = s->hurry && *s->hurry;
  return hurry && place_of(s, rank) < 0 && now - signs_of(s, rank)->alive > vanished_ns;
}

/* The collective is idle and waits for `awaited`: says so, and accuses a rank when it is time to. */
static void watch_idle(iso_shared *s, watch *w, int awaited) {
  const int64_t now = now_ns(), before = s->own->signs.beat;
  const int64_t away_ns = w->timeout_ns / 2 > least_away_ns ? w->timeout_ns / 2 : least_away_ns;
  s->own->signs.beat = now;
  s->own->signs.awaits = awaited + 1;
  /* This process may itself have been stopped: that is no time that others let pass. */
  if (w->idle++ == 0 || now - before > away_ns) w->since = w->looked = now;
  if (w->suspect >= 0 || now - w->looked >= look_every_ns) {
    const int why = look(s, awaited);
    w->looked = now;
    if (w->suspect == awaited && why != NOTHING) accuse(s, awaited, why);
    w->suspect = why != NOTHING ? awaited : -1;
    if (w->suspect >= 0) return;
    if (is_vanished(s, awaited, now)) accuse(s, awaited, VANISHED);
  }
  if (now - w->since >= w->timeout_ns) {
    bool circle;
    const int rank = end_of_chain(s, awaited, now - away_ns, &circle), why = look(s, rank);
    if (why == NOTHING && !circle) w->since = silent_since(s, rank, w->since, now);
    /* What is seen of other hosts is older than what is seen here: a circle may be none, and is given more time. */
    if (now - w->since < (circle ? 2 : 1) * w->timeout_ns) {
      rest(w->idle);
      return;
    }
    accuse(s, rank, why == NOTHING ? SILENT : why);
    return;
  }
  rest(w->idle);
}

void iso_shared_beat(iso_shared *s) {
  s->own->signs.work = now_ns();
}

void iso_shared_excuse(iso_shared *s, bool excused) {
  s->own->signs.work = now_ns();
  s->own->signs.excused = excused;
}

iso_status iso_shared_wait(iso_shared *s, iso_collective collective, int64_t step, double timeout_s) {
  watch w = {.timeout_ns = timeout_s < 1e9 ? (int64_t)(timeout_s * 1e9) : INT64_MAX / 2, .suspect = -1};
  for (iso_poll progress = ISO_POLL_IDLE; progress != ISO_POLL_DONE;) {
    progress = collective.poll(collective.self);
    if (progress != ISO_POLL_MOVED && s->head->verdict) {
      const iso_status status = tell(s, collective.what, step, timeout_s);
      if (s->away.tell) s->away.tell(s->away.pulse, (int)(s->head->verdict & 0xffffff));
      return status;
    }
    if (progress == ISO_POLL_IDLE) {
      const int awaited = collective.awaits(collective.self);
      if (awaited >= 0) watch_idle(s, &w, awaited); /* else it has just come */
    } else if (w.idle) {
      w = (watch){.timeout_ns = w.timeout_ns, .suspect = -1};
      s->own->signs.awaits = 0;
    }
  }
  return ISO_OK;
}

void iso_shared_await_end(iso_shared *s, int rank, double seconds) {
  const int64_t end = now_ns() + (int64_t)(seconds * 1e9);
  const bool away = place_of(s, rank) < 0;
  while (look(s, rank) == NOTHING && (s->head->verdict & 0xffffff) != (uint64_t)rank) {
    const int64_t now = now_ns();
    if (now >= end || (away && now - signs_of(s, rank)->alive > vanished_ns)) return;
    nanosleep(&(struct timespec){.tv_nsec = look_every_ns}, NULL);
  }
}

iso_status iso_shared_look(iso_shared *s, int64_t step, double seconds) {
  const int64_t end = now_ns() + (int64_t)(seconds * 1e9);
  do {
    for (int i = 0; i < s->head->count && !s->head->verdict; i++)
      if (look(s, s->head->slots[i].rank) == GONE) accuse(s, s->head->slots[i].rank, GONE);
    if (s->head->verdict) return tell(s, "the end", step, 0);
    nanosleep(&(struct timespec){.tv_nsec = look_every_ns}, NULL);
  } while (now_ns() < end);
  return ISO_OK;
}
