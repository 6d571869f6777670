/* SPDX-License-Identifier: Apache-2.0
 *
 * What src/comm's collectives stand on, over SMPI: messages are MPI's, signals between ranks of a host are messages of
 * a few bytes, which take the host's own latency. A process waits only where nothing moves, for whatever comes first.
 *
 * Unless sums are checked, messages carry nothing (one buffer that SMPI does not copy), but have their size.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { CHANNELS = 3, DATA = 1, SIGNAL = 2 };

typedef struct word {
  int channel, kind;
  uint64_t round;
} word;

typedef struct channel {
  mesh *m;
  int number;
} channel;

struct mesh {
  const setup *s;
  int rank, room, top; /* of the table of requests; beyond `top` none was ever used */
  MPI_Request *table;  /* [mate_count] words of neighbours, then messages */
  bool *done;
  int *free_numbers, free_count;
  word *words; /* [mates] that come */
  const int *host;
  int *mates, mate_count;
  uint64_t *reached; /* [ranks][CHANNELS][ISO_SIGNAL_KINDS] */
  channel channels[CHANNELS];
  iso_signals signals[CHANNELS];
  iso_transport transport;
  void *nothing;
};

static int post(mesh *m, bool sends, int peer, void *data, size_t bytes) {
  if (!m->free_count) return -1;
  const int number = m->free_numbers[--m->free_count];
  if (number >= m->top) m->top = number + 1;
  m->done[number] = false;
  void *where = m->s->check ? data : m->nothing;
  if (sends)
    MPI_Isend(where, (int)bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &m->table[number]);
  else
    MPI_Irecv(where, (int)bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &m->table[number]);
  return number;
}

static int send_data(void *self, int peer, const void *data, size_t bytes) {
  return post(self, true, peer, (void *)(uintptr_t)data, bytes);
}

static int receive_data(void *self, int peer, void *data, size_t bytes) {
  return post(self, false, peer, data, bytes);
}

static bool complete(void *self, int number) {
  mesh *m = self;
  if (!m->done[number]) return false;
  m->done[number] = false;
  m->free_numbers[m->free_count++] = number;
  return true;
}

static uint64_t *reached_by(mesh *m, int rank, int number, int kind) {
  return &m->reached[(rank * CHANNELS + number) * ISO_SIGNAL_KINDS + kind];
}

static void raise_signal(void *self, int kind, uint64_t round) {
  const channel *c = self;
  mesh *m = c->m;
  word said = {c->number, kind, round};
  *reached_by(m, m->rank, c->number, kind) = round;
  for (int i = 0; i < m->mate_count; i++)
    if (m->mates[i] != m->rank) MPI_Send(&said, sizeof said, MPI_BYTE, m->mates[i], SIGNAL, MPI_COMM_WORLD);
}

static bool reached(void *self, int rank, int kind, uint64_t round) {
  const channel *c = self;
  return *reached_by(c->m, rank, c->number, kind) >= round;
}

static void listen(mesh *m, int mate) {
  MPI_Irecv(&m->words[mate], sizeof(word), MPI_BYTE, m->mates[mate], SIGNAL, MPI_COMM_WORLD, &m->table[mate]);
}

mesh *mesh_create(const setup *s, int rank, const int *host) {
  mesh *m = calloc(1, sizeof *m);
  m->s = s;
  m->rank = rank;
  m->host = host;
  m->mates = calloc((size_t)s->ranks, sizeof *m->mates);
  for (int r = 0; r < s->ranks; r++)
    if (host[r] == host[rank]) m->mates[m->mate_count++] = r;
  m->room = m->mate_count + 64 * s->ranks;
  m->table = calloc((size_t)m->room, sizeof *m->table);
  m->done = calloc((size_t)m->room, sizeof *m->done);
  m->free_numbers = calloc((size_t)m->room, sizeof *m->free_numbers);
  m->words = calloc((size_t)m->mate_count, sizeof *m->words);
  m->reached = calloc((size_t)(s->ranks * CHANNELS * ISO_SIGNAL_KINDS), sizeof *m->reached);
  for (int i = 0; i < m->room; i++) m->table[i] = MPI_REQUEST_NULL;
  m->top = m->mate_count;
  for (int i = m->room - 1; i >= m->mate_count; i--) m->free_numbers[m->free_count++] = i;
  for (int i = 0; i < m->mate_count; i++)
    if (m->mates[i] != rank) listen(m, i);
  m->nothing = SMPI_SHARED_MALLOC(CHUNK * sizeof(double));
  m->transport = (iso_transport){m, send_data, receive_data, complete};
  for (int i = 0; i < CHANNELS; i++) {
    m->channels[i] = (channel){m, i};
    m->signals[i] = (iso_signals){&m->channels[i], raise_signal, reached};
  }
  return m;
}

/* Words that nobody says any more are not waited for. */
void mesh_destroy(mesh *m) {
  for (int i = 0; i < m->mate_count; i++)
    if (m->mates[i] != m->rank) MPI_Cancel(&m->table[i]);
  SMPI_SHARED_FREE(m->nothing);
  free(m->mates);
  free(m->table);
  free(m->done);
  free(m->free_numbers);
  free(m->words);
  free(m->reached);
  free(m);
}

const iso_transport *mesh_transport(mesh *m) {
  return &m->transport;
}

const iso_signals *mesh_signals(mesh *m, int number) {
  return &m->signals[number];
}

static void take(mesh *m, int number) {
  if (number >= m->mate_count) {
    m->done[number] = true;
    return;
  }
  const word *said = &m->words[number];
  *reached_by(m, m->mates[number], said->channel, said->kind) = said->round;
  listen(m, number);
}

static void wait_for_any(mesh *m) {
  int number;
  MPI_Waitany(m->top, m->table, &number, MPI_STATUS_IGNORE);
  take(m, number);
}

/* What came while the thread added: the engine's messages are another thread's. */
static void look(mesh *m) {
  for (int number, there;;) {
    MPI_Testany(m->top, m->table, &number, &there, MPI_STATUS_IGNORE);
    if (!there || number == MPI_UNDEFINED) return;
    take(m, number);
  }
}

static bool charged; /* of this process: SMPI gives each its own */

void mesh_run(mesh *m, iso_collective collective) {
  for (;;) {
    charged = false;
    const iso_poll polled = collective.poll(collective.self);
    if (polled == ISO_POLL_DONE) return;
    if (polled == ISO_POLL_IDLE)
      wait_for_any(m);
    else if (charged)
      look(m);
  }
}

void charge(const setup *s, double bytes) {
  charged = true;
  smpi_execute_flops(bytes / s->memory * CORE_SPEED);
}
