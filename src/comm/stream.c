/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream: what goes to, or comes from, one rank of another host, cut into messages of which a few are under way.
 *
 * Invariants
 *  1. Each pair of ranks has a window of its own: with one window for all, ranks whose windows are full of messages to
 *     each other's busy neighbours wait for each other in a circle.
 *  2. Both sides cut alike.
 */
#include "comm/comm.h"

void iso_stream_begin(iso_stream *stream) {
  stream->at = 0;
  for (int i = 0; i < ISO_STREAM_WINDOW; i++) stream->requests[i] = -1;
}

static bool all_posted(const iso_stream *s) {
  return s->at >= s->bytes;
}

/* false: the transport takes nothing now. */
static bool post_next(iso_stream *s, const iso_transport *t, int *request) {
  const int64_t rest = s->bytes - s->at;
  const size_t bytes = (size_t)(rest < s->chunk ? rest : s->chunk);
  char *data = s->data + s->at;
  *request = s->sends ? t->send(t->self, s->peer, data, bytes) : t->receive(t->self, s->peer, data, bytes);
  if (*request < 0) return false;
  s->at += (int64_t)bytes;
  return true;
}

bool iso_stream_poll(iso_stream *s, const iso_transport *t) {
  bool moved = false, taken = true;
  for (int i = 0; i < ISO_STREAM_WINDOW; i++) {
    if (s->requests[i] >= 0 && t->complete(t->self, s->requests[i])) {
      s->requests[i] = -1;
      moved = true;
    }
    if (s->requests[i] >= 0 || !taken || all_posted(s)) continue;
    taken = post_next(s, t, &s->requests[i]);
    moved = moved || taken;
  }
  return moved;
}

bool iso_stream_done(const iso_stream *s) {
  for (int i = 0; i < ISO_STREAM_WINDOW; i++)
    if (s->requests[i] >= 0) return false;
  return all_posted(s);
}
