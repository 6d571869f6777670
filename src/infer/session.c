/* SPDX-License-Identifier: Apache-2.0
 *
 * One sequence under the cached inference program. Two programs share weights, arena and caches: one takes a chunk of
 * tokens (the prompt), one takes a single token. A chunk that is not full writes cache rows beyond the sequence's end;
 * nothing attends to them before later tokens overwrite them. Where those rows would not fit, tokens go singly.
 */
#include <stdlib.h>
#include <string.h>

#include "infer/infer.h"

enum { CHUNK = 64 };

struct iso_session {
  const iso_lm *lm;
  iso_arena *compilation;
  iso_flat flat; /* master borrowed from the model */
  void *weights;
  size_t weights_bytes;
  void *arena;
  size_t arena_bytes;
  iso_exec *chunk, *single;
  int64_t capacity, rows, chunk_rows, length; /* rows: of the caches */
  int32_t tokens[CHUNK], positions[CHUNK];
};

static iso_status compile(iso_session *session, iso_dtype compute, int64_t sequence, iso_program **program) {
  const iso_lm *lm = session->lm;
  const iso_build_options build = {ISO_BUILD_CACHED, 1, sequence, session->rows, false};
  iso_graph *graph;
  ISO_TRY(iso_model_build(&lm->model, &build, session->compilation, &graph));
  const iso_compile_options options = {.compute = compute,
                                       .gradient = compute,
                                       .threads = iso_device_threads(lm->device),
                                       .kernels = iso_device_kernels(lm->device)};
  return iso_compile(graph, &options, program);
}

static iso_status make_weights(iso_session *session, iso_dtype compute) {
  const int64_t elements = session->lm->graph->flat_elements;
  session->flat.options = (iso_flat_options){elements, compute, compute, false, 1, false, NULL};
  session->flat.master = session->lm->master;
  if (compute != ISO_BF16) return ISO_OK;
  session->weights_bytes = (size_t)elements * sizeof(iso_bf16);
  session->weights = iso_slab_alloc(session->weights_bytes, "bfloat16 weights");
  if (!session->weights) return ISO_ERR_MEMORY;
  session->flat.weights = session->weights;
  iso_flat_refresh(&session->flat, session->lm->device);
  return ISO_OK;
}

static iso_status open_session(iso_session *session, iso_dtype compute) {
  iso_program *chunk, *single;
  ISO_TRY(compile(session, compute, session->chunk_rows, &chunk));
  ISO_TRY(compile(session, compute, 1, &single));
  ISO_TRY(make_weights(session, compute));
  session->arena_bytes = (size_t)(chunk->arena_bytes > single->arena_bytes ? chunk->arena_bytes : single->arena_bytes);
  if (session->arena_bytes == 0) session->arena_bytes = 64;
  session->arena = iso_slab_alloc(session->arena_bytes, "inference arena");
  if (!session->arena) return ISO_ERR_MEMORY;
  ISO_TRY(iso_exec_create(session->lm->device, chunk, &session->flat, session->arena, NULL, &session->chunk));
  return iso_exec_create(session->lm->device, single, &session->flat, session->arena, session->chunk, &session->single);
}

iso_status iso_session_create(const iso_lm *lm, iso_dtype compute, int64_t capacity, iso_session **out) {
  *out = NULL;
  if (capacity < 1) capacity = 1;
  if (capacity > lm->model.positions)
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: %lld tokens are more than the model's %lld positions; shorten the prompt or --max-tokens",
                    lm->path, (long long)capacity, (long long)lm->model.positions);
  iso_session *session = calloc(1, sizeof *session);
  if (!session) return iso_fail(ISO_ERR_MEMORY, "session: no memory for %zu bytes", sizeof *session);
  session->lm = lm;
  session->capacity = capacity;
  session->rows = (capacity + CHUNK - 1) / CHUNK * CHUNK;
  if (session->rows > lm->model.positions) session->rows = lm->model.positions;
  session->chunk_rows = session->rows < CHUNK ? session->rows : CHUNK;
  session->compilation = iso_arena_create();
  iso_status status = session->compilation ? open_session(session, compute)
                                           : iso_fail(ISO_ERR_MEMORY, "session: no memory to compile the model");
  if (status != ISO_OK) iso_session_destroy(&session);
  *out = session;
  return status;
}

void iso_session_destroy(iso_session **session) {
  if (!session || !*session) return;
  iso_session *s = *session;
  iso_exec_destroy(&s->single);
  iso_exec_destroy(&s->chunk);
  iso_slab_free(s->arena, s->arena_bytes);
  iso_slab_free(s->weights, s->weights_bytes);
  iso_arena_destroy(&s->compilation);
  free(s);
  *session = NULL;
}

int64_t iso_session_length(const iso_session *session) {
  return session->length;
}

/* `count` tokens through the program for `rows` of them; the rest of the rows repeats the last token. */
static const float *run(iso_session *session, iso_exec *exec, const int32_t *tokens, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    session->tokens[i] = tokens[i < count ? i : count - 1];
    session->positions[i] = (int32_t)(session->length + i);
  }
  const iso_inputs inputs = {.tokens = session->tokens, .positions = session->positions};
  iso_exec_forward(exec, &inputs, session->length);
  session->length += count;
  const float *logits = iso_exec_output(exec, "logits");
  return logits + (count - 1) * session->lm->model.vocabulary;
}

iso_status iso_session_feed(iso_session *session, const int32_t *tokens, int64_t count, const float **logits) {
  if (count < 1) return iso_fail(ISO_ERR_USAGE, "session: nothing to feed; give at least one token");
  if (session->length + count > session->capacity)
    return iso_fail(ISO_ERR_CONFIG, "session: %lld tokens are more than its capacity of %lld",
                    (long long)(session->length + count), (long long)session->capacity);
  for (int64_t i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= session->lm->model.vocabulary)
      return iso_fail(ISO_ERR_MISMATCH, "session: token %d is outside the vocabulary of %lld", tokens[i],
                      (long long)session->lm->model.vocabulary);
  while (count > 0) {
    const bool fits = count > 1 && session->length + session->chunk_rows <= session->rows;
    const int64_t part = !fits ? 1 : count < session->chunk_rows ? count : session->chunk_rows;
    *logits = fits ? run(session, session->chunk, tokens, part, session->chunk_rows)
                   : run(session, session->single, tokens, 1, 1);
    tokens += part;
    count -= part;
  }
  return ISO_OK;
}
