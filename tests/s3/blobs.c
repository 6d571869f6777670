/* SPDX-License-Identifier: Apache-2.0
 *
 * blobs: lists and reads what a path means, for tests of S3 and by hand.
 *
 *   blobs list PATH                             bytes, version and path of each blob
 *   blobs sum PATH [THREADS] [READ_BYTES]       CRC-32C and path below PATH of each blob, read in pieces of READ_BYTES
 * in a shuffled order by THREADS; latencies to standard error blobs read PATH BYTES VERSION               reads one
 * blob as it once was blobs unpack PATH FILE                      decompresses
 */
#include "io/io.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct reading {
  iso_blob **blobs;
  int64_t *first; /* [count + 1]: first piece of each blob */
  int64_t count, piece_bytes, pieces;
  char **contents;
  double *latency_s; /* [pieces] */
  atomic_llong next;
  atomic_int failure; /* the first status that is not ISO_OK */
} reading;

static void *reader(void *context) {
  reading *r = context;
  for (;;) {
    int64_t n = atomic_fetch_add(&r->next, 1), blob = 0;
    if (n >= r->pieces || atomic_load(&r->failure)) return NULL;
    int64_t piece = (int64_t)iso_rng_permute(1, 2, (uint64_t)r->pieces, (uint64_t)n);
    while (r->first[blob + 1] <= piece) blob++;
    int64_t at = (piece - r->first[blob]) * r->piece_bytes, bytes = iso_blob_info_of(r->blobs[blob])->bytes - at;
    if (bytes > r->piece_bytes) bytes = r->piece_bytes;
    double began = iso_clock_s();
    iso_status status = iso_blob_read(r->blobs[blob], at, bytes, r->contents[blob] + at);
    r->latency_s[n] = iso_clock_s() - began;
    int none = ISO_OK;
    if (status != ISO_OK) atomic_compare_exchange_strong(&r->failure, &none, (int)status);
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static iso_status sum(iso_arena *arena, const char *path, int threads, int64_t piece_bytes) {
  iso_blob_info *infos;
  reading r = {.piece_bytes = piece_bytes};
  ISO_TRY(iso_blobs_list(arena, path, &infos, &r.count));
  r.blobs = iso_arena_alloc(arena, (size_t)r.count * sizeof *r.blobs);
  r.first = iso_arena_alloc(arena, (size_t)(r.count + 1) * sizeof *r.first);
  r.contents = iso_arena_alloc(arena, (size_t)r.count * sizeof *r.contents);
  for (int64_t i = 0; i < r.count; i++) {
    ISO_TRY(iso_blob_open(&infos[i], &r.blobs[i]));
    r.contents[i] = iso_arena_alloc(arena, (size_t)infos[i].bytes + 1);
    r.first[i + 1] = r.first[i] + (infos[i].bytes + piece_bytes - 1) / piece_bytes;
  }
  r.pieces = r.first[r.count];
  r.latency_s = iso_arena_alloc(arena, (size_t)(r.pieces + 1) * sizeof *r.latency_s);
  pthread_t ids[64];
  if (threads > 64) threads = 64;
  double began = iso_clock_s();
  for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, reader, &r);
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  double took_s = iso_clock_s() - began;
  int64_t bytes = 0;
  for (int64_t i = 0; i < r.count; i++) {
    const char *name = infos[i].path;
    if (strncmp(name, path, strlen(path)) == 0) name += strlen(path);
    while (*name == '/') name++;
    if (!r.failure) printf("%08x %s\n", iso_crc32c(0, r.contents[i], (size_t)infos[i].bytes), name);
    bytes += infos[i].bytes;
    iso_blob_close(&r.blobs[i]);
  }
  qsort(r.latency_s, (size_t)r.pieces, sizeof *r.latency_s, by_value);
  if (!r.failure && r.pieces > 0)
    fprintf(stderr, "%lld reads, %.1f MiB, %.2f s; latency ms: median %.1f, p95 %.1f, p99 %.1f, max %.1f\n",
            (long long)r.pieces, (double)bytes / 1048576, took_s, 1e3 * r.latency_s[r.pieces / 2],
            1e3 * r.latency_s[r.pieces * 95 / 100], 1e3 * r.latency_s[r.pieces * 99 / 100],
            1e3 * r.latency_s[r.pieces - 1]);
  return (iso_status)r.failure;
}

static iso_status list(iso_arena *arena, const char *path) {
  iso_blob_info *infos;
  int64_t count;
  ISO_TRY(iso_blobs_list(arena, path, &infos, &count));
  for (int64_t i = 0; i < count; i++)
    printf("%lld %s %s\n", (long long)infos[i].bytes, infos[i].version, infos[i].path);
  return ISO_OK;
}

static iso_status read_as_was(char *path, int64_t bytes, const char *version) {
  iso_blob_info info = {.path = path, .bytes = bytes};
  iso_blob *blob;
  snprintf(info.version, sizeof info.version, "%s", version);
  ISO_TRY(iso_blob_open(&info, &blob));
  char *buffer = malloc((size_t)bytes + 1);
  iso_status status = buffer ? iso_blob_read(blob, 0, bytes, buffer) : ISO_ERR_MEMORY;
  if (status == ISO_OK) fwrite(buffer, 1, (size_t)bytes, stdout);
  free(buffer);
  iso_blob_close(&blob);
  return status;
}

static iso_status unpack(iso_arena *arena, const char *path, const char *file) {
  iso_blob_info *infos;
  int64_t count;
  iso_blob *blob;
  iso_sink sink;
  iso_compression how;
  ISO_TRY(iso_blobs_list(arena, path, &infos, &count));
  ISO_TRY(iso_blob_open(&infos[0], &blob));
  iso_status status = iso_sink_open(&sink, file);
  if (status == ISO_OK) {
    status = iso_compression_of(blob, &how);
    if (status == ISO_OK) status = iso_decompress(blob, how, &sink, NULL);
    if (status == ISO_OK) status = iso_sink_commit(&sink);
    if (status != ISO_OK) iso_sink_abandon(&sink);
  }
  iso_blob_close(&blob);
  return status;
}

int main(int count, char **words) {
  iso_arena *arena = iso_arena_create();
  iso_status status = ISO_ERR_USAGE;
  if (count == 3 && strcmp(words[1], "list") == 0)
    status = list(arena, words[2]);
  else if (count >= 3 && strcmp(words[1], "sum") == 0)
    status = sum(arena, words[2], count > 3 ? atoi(words[3]) : 1, count > 4 ? atoll(words[4]) : 1 << 20);
  else if (count == 5 && strcmp(words[1], "read") == 0)
    status = read_as_was(words[2], atoll(words[3]), words[4]);
  else if (count == 4 && strcmp(words[1], "unpack") == 0)
    status = unpack(arena, words[2], words[3]);
  else
    fprintf(stderr, "usage: blobs list PATH | sum PATH [THREADS] [READ_BYTES] | read PATH BYTES VERSION | unpack PATH "
                    "FILE\n");
  iso_arena_destroy(&arena);
  return iso_exit_code(status);
}
