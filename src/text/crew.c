/* SPDX-License-Identifier: Apache-2.0
 *
 * crew.c: several threads on one long text.
 *
 * The text is cut at certain borders (border.c) into parts of about PART_BYTES. Its own thread and those that help take
 * the next part each, encode it, and put the ids where it belongs in a ring; the own thread hands them on in order.
 * Whoever takes a part also reads it: it is then in the caches of the core that encodes it.
 *
 * Invariants
 *  1. Ids are those of iso_encode_to, whatever the number of threads, and the sink gets them in order from one thread.
 *  2. Of a text that is read, and of ids, what is held is bounded by the ring: threads + AHEAD parts. A part without
 *     border is as long as it has to be; one of more than LARGE_PART bytes is encoded by the own thread when its turn
 *     has come, straight into the sink, so that its ids are never held.
 *  3. Each byte is looked at for a border once and copied a bounded number of times.
 *  4. A job is left by all helpers before its thread returns.
 *
 * One lock for all; a part is some milliseconds of work.
 */
#include "text/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PART_BYTES = 1 << 17, MARGIN = 1 << 12, LARGE_PART = 8 << 20, AHEAD = 4 };

typedef enum part_state {
  BUSY,
  LARGE, /* to be encoded when its turn comes */
  DONE
} part_state;

typedef struct part {
  part_state state;
  struct part *below; /* among those that are free */
  const char *text;   /* in the whole or in `buffer` */
  size_t length, valid, offset;
  bool last;
  char *buffer;
  size_t room; /* of buffer */
  int32_t *ids;
  size_t count, capacity;
} part;

typedef struct job {
  struct job *after;
  iso_crew *crew;
  const iso_long_text *text;
  bool special;
  part *parts; /* [depth] */
  part **ring; /* [depth], by number */
  part *spare; /* free ones, the one used last first: it is in the caches */
  size_t depth;
  size_t head, tail; /* numbers of the first part not handed on, and of the next to be cut */
  bool cutting, all_cut;
  int helpers;
  iso_status status;
  iso_string error; /* its message, whichever thread met it */
  size_t done, got; /* bytes cut; bytes read, for whoever cuts */
  char *rest;       /* bytes read and not cut */
  size_t rest_bytes, rest_room;
} job;

struct iso_crew {
  const iso_tokenizer *tokenizer;
  int threads, owners; /* owners: threads that may still have texts of their own */
  job *jobs;
  pthread_mutex_t lock; /* over all that follows, and jobs */
  pthread_cond_t moved;
};

iso_crew *iso_crew_create(const iso_tokenizer *tokenizer, int threads) {
  iso_crew *crew = calloc(1, sizeof *crew);
  if (!crew) {
    iso_fail(ISO_ERR_MEMORY, "out of memory for threads that encode");
    return NULL;
  }
  crew->tokenizer = tokenizer;
  crew->threads = crew->owners = threads;
  pthread_mutex_init(&crew->lock, NULL);
  pthread_cond_init(&crew->moved, NULL);
  return crew;
}

void iso_crew_destroy(iso_crew **crew) {
  if (!crew || !*crew) return;
  pthread_mutex_destroy(&(*crew)->lock);
  pthread_cond_destroy(&(*crew)->moved);
  free(*crew);
  *crew = NULL;
}

/* ---- cutting the next part ---- */

static bool grow(char **buffer, size_t *room, size_t wanted) {
  if (*room >= wanted) return true;
  size_t larger = *room ? *room : PART_BYTES + 2 * MARGIN;
  while (larger < wanted) larger += larger / 2;
  char *grown = realloc(*buffer, larger);
  if (!grown) return false;
  *buffer = grown;
  *room = larger;
  return true;
}

static iso_status no_memory(size_t bytes) {
  return iso_fail(ISO_ERR_MEMORY, "out of memory for %zu bytes of a long text", bytes);
}

/* Is the rest short enough to be one part? */
static bool is_end(size_t left) {
  return left <= PART_BYTES + PART_BYTES / 2;
}

static void cut_held(const job *j, part *p) {
  const size_t left = j->text->length - j->done;
  p->text = j->text->text + j->done;
  p->length = is_end(left) ? left : iso_text_border(j->crew->tokenizer, p->text, PART_BYTES, left, j->special);
}

static iso_status cut_read(job *j, part *p) {
  size_t have = j->rest_bytes, searched = PART_BYTES, wanted = PART_BYTES + MARGIN;
  if (!grow(&p->buffer, &p->room, have)) return no_memory(have);
  if (have) memcpy(p->buffer, j->rest, have);
  for (;; wanted = have + PART_BYTES) {
    const size_t unread = j->text->length - j->got;
    size_t more = wanted > have ? wanted - have : 0;
    if (is_end(have + unread) || more > unread) more = unread;
    if (!grow(&p->buffer, &p->room, have + more)) return no_memory(have + more);
    if (more) ISO_TRY(j->text->read(j->text->context, j->got, more, p->buffer + have));
    j->got += more;
    have += more;
    if (j->got == j->text->length && is_end(have)) {
      p->length = have;
      break;
    }
    p->length = iso_text_border(j->crew->tokenizer, p->buffer, searched, have, j->special);
    if (p->length < have || j->got == j->text->length) break;
    if (have > searched + 3) searched = have - 3; /* a character may have been cut in two */
  }
  p->text = p->buffer;
  j->rest_bytes = have - p->length;
  if (!grow(&j->rest, &j->rest_room, j->rest_bytes)) return no_memory(j->rest_bytes);
  if (j->rest_bytes) memcpy(j->rest, p->buffer + p->length, j->rest_bytes);
  return ISO_OK;
}

/* ---- a part: by any thread; the lock is held before and after ---- */

static bool may_take(const job *j) {
  return j->status == ISO_OK && !j->cutting && !j->all_cut && j->tail - j->head < j->depth;
}

static iso_status encode(const job *j, part *p, iso_encoder *encoder) {
  p->valid = j->text->text ? p->length : iso_utf8_valid_prefix(p->text, p->length);
  p->count = 0;
  p->state = p->length > LARGE_PART ? LARGE : DONE;
  if (p->valid < p->length || p->state == LARGE) return ISO_OK;
  return iso_encode_part(encoder, p->text, p->length, j->special, p->offset == 0, &p->ids, &p->capacity, &p->count);
}

static void fail(job *j, iso_status status) {
  if (j->status != ISO_OK) return;
  j->status = status;
  iso_string_printf(&j->error, "%s", iso_last_error());
}

static void take(job *j, iso_encoder *encoder) {
  iso_crew *crew = j->crew;
  part *p = j->spare;
  iso_status status = ISO_OK;
  j->spare = p->below;
  j->ring[j->tail++ % j->depth] = p;
  p->state = BUSY;
  j->cutting = true;
  pthread_mutex_unlock(&crew->lock);
  p->offset = j->done;
  if (j->text->text)
    cut_held(j, p);
  else
    status = cut_read(j, p);
  pthread_mutex_lock(&crew->lock);
  j->cutting = false;
  if (status == ISO_OK) j->done += p->length;
  if (status != ISO_OK)
    fail(j, status);
  else
    j->all_cut = p->last = j->done == j->text->length;
  pthread_cond_broadcast(&crew->moved);
  if (status != ISO_OK) return;
  part made = *p;
  pthread_mutex_unlock(&crew->lock);
  status = encode(j, &made, encoder);
  pthread_mutex_lock(&crew->lock);
  *p = made;
  if (status != ISO_OK) fail(j, status);
  pthread_cond_broadcast(&crew->moved);
}

/* ---- the text's own thread ---- */

/* Hands on the part at the head; the lock is not held. */
static iso_status hand_on(const job *j, part *p, iso_encoder *encoder, const iso_ids_sink *sink, size_t *count) {
  if (p->state == LARGE)
    ISO_TRY(iso_encode_part_to(encoder, p->text, p->length, j->special, p->offset == 0, sink, &p->count));
  else if (p->count)
    ISO_TRY(sink->put(sink->context, p->ids, p->count));
  *count += p->count;
  if (p->room > LARGE_PART / 4) { /* of a part without border; the next ones are short again */
    free(p->buffer);
    p->buffer = NULL;
    p->room = 0;
  }
  return ISO_OK;
}

static void lead(job *j, iso_encoder *encoder, const iso_ids_sink *sink, size_t *count, size_t *valid) {
  iso_crew *crew = j->crew;
  while (j->status == ISO_OK) {
    part *p = j->ring[j->head % j->depth];
    if (j->head < j->tail && p->state != BUSY) {
      if (p->valid < p->length) {
        *valid = p->offset + p->valid;
        break;
      }
      pthread_mutex_unlock(&crew->lock);
      const iso_status status = hand_on(j, p, encoder, sink, count);
      pthread_mutex_lock(&crew->lock);
      if (status != ISO_OK) fail(j, status);
      if (p->last) break;
      j->head++;
      p->below = j->spare;
      j->spare = p;
      pthread_cond_broadcast(&crew->moved);
    } else if (may_take(j)) {
      take(j, encoder);
    } else {
      pthread_cond_wait(&crew->moved, &crew->lock);
    }
  }
}

static void enter(job *j) {
  iso_crew *crew = j->crew;
  pthread_mutex_lock(&crew->lock);
  j->after = crew->jobs;
  crew->jobs = j;
  pthread_cond_broadcast(&crew->moved);
}

/* Takes the job off the list, and waits for those who help. */
static void leave(job *j) {
  iso_crew *crew = j->crew;
  job **at = &crew->jobs;
  while (*at != j) at = &(*at)->after;
  *at = j->after;
  while (j->helpers) pthread_cond_wait(&crew->moved, &crew->lock);
  pthread_mutex_unlock(&crew->lock);
}

iso_status iso_crew_encode(iso_crew *crew, iso_encoder *encoder, const iso_long_text *text, bool parse_special,
                           const iso_ids_sink *sink, size_t *count, size_t *valid) {
  *count = 0;
  *valid = text->length;
  if (text->length == 0) return ISO_OK;
  if (text->text && (iso_encoder_refuses(encoder) || is_end(text->length)))
    return iso_encode_to(encoder, text->text, text->length, parse_special, sink, count);
  job j = {.crew = crew, .text = text, .special = parse_special, .depth = (size_t)crew->threads + AHEAD};
  j.parts = calloc(j.depth, sizeof *j.parts);
  j.ring = calloc(j.depth, sizeof *j.ring);
  if (j.parts && j.ring) {
    for (size_t i = 0; i < j.depth; i++) {
      j.parts[i].below = j.spare;
      j.spare = &j.parts[i];
    }
    enter(&j);
    lead(&j, encoder, sink, count, valid);
    leave(&j);
  } else {
    j.status = no_memory(j.depth * (sizeof *j.parts + sizeof *j.ring));
  }
  for (size_t i = 0; j.parts && i < j.depth; i++) {
    free(j.parts[i].buffer);
    free(j.parts[i].ids);
  }
  free(j.parts);
  free(j.ring);
  free(j.rest);
  if (j.status != ISO_OK && j.error.length) {
    const bool muted = iso_log_mute(true); /* it was logged where it was met */
    (void)iso_fail(j.status, "%s", j.error.data ? j.error.data : "");
    iso_log_mute(muted);
  }
  iso_string_fini(&j.error);
  return j.status;
}

/* ---- those who help ---- */

void iso_crew_leave(iso_crew *crew) {
  pthread_mutex_lock(&crew->lock);
  crew->owners--;
  pthread_cond_broadcast(&crew->moved);
  pthread_mutex_unlock(&crew->lock);
}

/* With the lock: a part of some text, if there is one. */
static bool help(iso_crew *crew, iso_encoder *encoder) {
  job *j = crew->jobs;
  while (j && !may_take(j)) j = j->after;
  if (!j) return false;
  j->helpers++;
  take(j, encoder);
  j->helpers--;
  pthread_cond_broadcast(&crew->moved);
  return true;
}

bool iso_crew_help_once(iso_crew *crew, iso_encoder *encoder) {
  pthread_mutex_lock(&crew->lock);
  const bool helped = help(crew, encoder);
  pthread_mutex_unlock(&crew->lock);
  return helped;
}

void iso_crew_help(iso_crew *crew, iso_encoder *encoder) {
  pthread_mutex_lock(&crew->lock);
  for (;;) {
    if (help(crew, encoder)) continue;
    if (crew->owners == 0) break;
    pthread_cond_wait(&crew->moved, &crew->lock);
  }
  pthread_mutex_unlock(&crew->lock);
}
