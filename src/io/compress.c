/* SPDX-License-Identifier: Apache-2.0
 *
 * gzip (RFC 1952, by zlib) and Zstandard (RFC 8878, by libzstd): whole files into a sink, and single blocks.
 *
 * A file is a chain of units: gzip members or Zstandard frames. Both libraries check what their format lets them check
 * (gzip always has a CRC-32; a Zstandard frame has a checksum if its writer wished so).
 *
 * Invariants
 *  1. The output is complete: a file whose last unit does not end is an error, never a shorter text. Who asks for it is
 *     told of the damage instead, and how much of the output is to be trusted.
 *  2. After a unit there is another one or the end of the file. Anything else is an error that says where it begins.
 *  3. Positions in messages are bytes of the compressed file.
 */
#include "io/io.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
  IN_BYTES_LOCAL = 1 << 20,
  IN_BYTES_REMOTE = 16 << 20, /* a request has a price of its own */
  OUT_BYTES = 1 << 20,
  ZERO_TAIL = 16,                /* compressed data does not end in so many zeros */
  GZIP_WINDOW = 16 + 15,         /* zlib: gzip only */
  GZIP_OR_ZLIB_WINDOW = 32 + 15, /* zlib: whichever it is; some writers of Parquet use the latter */
  ZSTD_WINDOW_LOG_MAX = 31       /* all that `zstd --long=31` writes; the memory is touched only as it is needed */
};

/* ---- which ---- */

static bool ends_with(const char *text, const char *suffix) {
  size_t length = strlen(text), tail = strlen(suffix);
  return length > tail && strcmp(text + length - tail, suffix) == 0;
}

const char *iso_compression_name(iso_compression how) {
  return how == ISO_GZIP ? "gzip" : how == ISO_ZSTD ? "zstd" : "plain";
}

iso_status iso_compression_of(iso_blob *blob, iso_compression *how) {
  const iso_blob_info *info = iso_blob_info_of(blob);
  unsigned char first[4] = {0};
  *how = ISO_PLAIN;
  ISO_TRY(iso_blob_read(blob, 0, info->bytes < 4 ? info->bytes : 4, first));
  bool zstd_skippable = (first[0] & 0xF0) == 0x50 && first[1] == 0x2A && first[2] == 0x4D && first[3] == 0x18;
  if (first[0] == 0x1F && first[1] == 0x8B && first[2] == 8) *how = ISO_GZIP;
  if (memcmp(first, "\x28\xB5\x2F\xFD", 4) == 0 || zstd_skippable) *how = ISO_ZSTD;
  iso_compression named = ISO_PLAIN;
  if (ends_with(info->path, ".gz")) named = ISO_GZIP;
  if (ends_with(info->path, ".zst") || ends_with(info->path, ".zstd")) named = ISO_ZSTD;
  if (named != ISO_PLAIN && *how != named)
    return iso_fail(ISO_ERR_FORMAT, "'%s' is not what its name says: it does not begin as a %s file%s", info->path,
                    iso_compression_name(named), info->bytes == 0 ? ", it is empty" : "; rename or replace it");
  return ISO_OK;
}

/* ---- whole files ---- */

typedef struct stream {
  iso_blob *from;
  const char *path;
  iso_sink *to;
  iso_damage *damage; /* takes what is wrong with the file; NULL: an error does */
  iso_transfer progress;
  unsigned char *in, *out;
  size_t in_capacity, in_bytes, in_at;
  int64_t read;       /* bytes of the file read into `in` so far */
  int64_t unit_began; /* where the current unit begins */
  int64_t sound;      /* bytes of output before it, of units that ended as they should */
  bool in_unit;       /* it has begun and not ended */
} stream;

static int64_t position(const stream *s) {
  return s->read - (int64_t)(s->in_bytes - s->in_at);
}

/* Makes `in` non-empty unless the file has ended. */
static iso_status refill(stream *s) {
  if (s->in_at < s->in_bytes) return ISO_OK;
  int64_t left = iso_blob_info_of(s->from)->bytes - s->read;
  size_t bytes = left < (int64_t)s->in_capacity ? (size_t)left : s->in_capacity;
  s->in_at = s->in_bytes = 0;
  ISO_TRY(iso_blob_read(s->from, s->read, (int64_t)bytes, s->in));
  s->in_bytes = bytes;
  s->read += (int64_t)bytes;
  iso_transfer_at(&s->progress, s->read);
  return ISO_OK;
}

/* The file is damaged, as `what` says; `kept` bytes of the output are to be trusted. */
static iso_status refuse(const stream *s, int64_t kept, const char *what, const char *advice) {
  if (!s->damage) return iso_fail(ISO_ERR_FORMAT, "'%s' %s; %s", s->path, what, advice);
  *s->damage = (iso_damage){.is = true, .kept = kept};
  snprintf(s->damage->cause, sizeof s->damage->cause, "the archive %s", what);
  return ISO_ERR_FORMAT;
}

/* Only a unit's end, with its checksum, tells whether what came out of it is right: nothing of a corrupt one is kept.
 */
static iso_status corrupt(const stream *s, const char *unit, const char *cause) {
  char what[160];
  snprintf(what, sizeof what, "is corrupt at byte %lld, in the %s that begins at byte %lld: %s", (long long)position(s),
           unit, (long long)s->unit_began, cause);
  return refuse(s, s->sound, what, "get it again");
}

/* A file that was given its full length before all of it was written ends in zeros, which decompress to something. */
static iso_status ends_in_zeros(const stream *s, bool *zeros) {
  unsigned char last[ZERO_TAIL] = {1};
  const int64_t bytes = iso_blob_info_of(s->from)->bytes;
  *zeros = false;
  if (bytes >= ZERO_TAIL) ISO_TRY(iso_blob_read(s->from, bytes - ZERO_TAIL, ZERO_TAIL, last));
  for (int i = 0; i < ZERO_TAIL; i++)
    if (last[i]) return ISO_OK;
  *zeros = true;
  return ISO_OK;
}

/* What ended too early is right as far as it goes, but for zeros. */
static iso_status truncated(const stream *s, const char *unit) {
  char what[160];
  bool zeros;
  ISO_TRY(ends_in_zeros(s, &zeros));
  snprintf(what, sizeof what, "is truncated: it ends at byte %lld%s within the %s that begins at byte %lld",
           (long long)position(s), zeros ? ", in zeros," : "", unit, (long long)s->unit_began);
  return refuse(s, zeros ? s->sound : s->to->bytes, what, "get it again");
}

static iso_status trailing(const stream *s, const char *unit) {
  char what[160];
  snprintf(what, sizeof what, "has other bytes after its last %s, from byte %lld on", unit, (long long)s->unit_began);
  return refuse(s, s->sound, what, "cut them off");
}

static iso_status copy_plain(stream *s) {
  for (;;) {
    ISO_TRY(refill(s));
    if (s->in_bytes == 0) return ISO_OK;
    ISO_TRY(iso_sink_write(s->to, s->in, s->in_bytes));
    s->in_at = s->in_bytes;
  }
}

/* A member that is not the first must begin with the magic: zlib would call anything else just a bad header. */
static iso_status begin_member(stream *s, bool first) {
  s->unit_began = position(s);
  s->in_unit = true;
  if (first) return ISO_OK;
  unsigned char magic[2] = {s->in[s->in_at], 0};
  if (s->in_bytes - s->in_at > 1)
    magic[1] = s->in[s->in_at + 1];
  else if (s->read < iso_blob_info_of(s->from)->bytes)
    ISO_TRY(iso_blob_read(s->from, s->read, 1, &magic[1]));
  return magic[0] == 0x1F && magic[1] == 0x8B ? ISO_OK : trailing(s, "gzip member");
}

static iso_status inflate_members(stream *s, z_stream *z) {
  const char *const unit = "gzip member";
  bool first = true;
  for (;;) {
    ISO_TRY(refill(s));
    if (s->in_bytes == 0) return s->in_unit || first ? truncated(s, unit) : ISO_OK;
    if (!s->in_unit) {
      ISO_TRY(begin_member(s, first));
      first = false;
      if (inflateReset(z) != Z_OK) return corrupt(s, unit, "zlib refuses to begin");
    }
    z->next_in = s->in + s->in_at;
    z->avail_in = (uInt)(s->in_bytes - s->in_at);
    int result;
    do {
      z->next_out = s->out;
      z->avail_out = OUT_BYTES;
      result = inflate(z, Z_NO_FLUSH);
      s->in_at = s->in_bytes - z->avail_in;
      ISO_TRY(iso_sink_write(s->to, s->out, OUT_BYTES - z->avail_out));
    } while (result == Z_OK && (z->avail_in > 0 || z->avail_out == 0));
    if (result == Z_STREAM_END) {
      s->in_unit = false;
      s->sound = s->to->bytes;
    }
    if (result == Z_MEM_ERROR) return iso_fail(ISO_ERR_MEMORY, "cannot decompress '%s': out of memory", s->path);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      return corrupt(s, unit, z->msg ? z->msg : "zlib gives no reason");
  }
}

static iso_status decompress_frames(stream *s, ZSTD_DCtx *context) {
  const char *const unit = "zstd frame";
  bool first = true;
  for (;;) {
    ISO_TRY(refill(s));
    if (s->in_bytes == 0) return s->in_unit || first ? truncated(s, unit) : ISO_OK;
    if (!s->in_unit) s->unit_began = position(s);
    ZSTD_inBuffer in = {s->in, s->in_bytes, s->in_at};
    ZSTD_outBuffer out;
    size_t result;
    do {
      out = (ZSTD_outBuffer){s->out, OUT_BYTES, 0};
      result = ZSTD_decompressStream(context, &out, &in);
      s->in_at = in.pos;
      s->in_unit = result != 0;
      if (ZSTD_isError(result)) break;
      ISO_TRY(iso_sink_write(s->to, s->out, out.pos));
    } while (result != 0 && (in.pos < in.size || out.pos == out.size));
    if (ZSTD_isError(result)) {
      ZSTD_ErrorCode code = ZSTD_getErrorCode(result);
      if (code == ZSTD_error_memory_allocation)
        return iso_fail(ISO_ERR_MEMORY, "cannot decompress '%s': out of memory", s->path);
      if (code == ZSTD_error_prefix_unknown && !first) return trailing(s, unit);
      if (code == ZSTD_error_dictionary_wrong)
        return iso_fail(ISO_ERR_UNSUPPORTED, "'%s' was compressed with a dictionary; compress it without one", s->path);
      return corrupt(s, unit, ZSTD_getErrorString(code));
    }
    if (result == 0) {
      first = false;
      s->sound = s->to->bytes;
    }
  }
}

iso_status iso_decompress(iso_blob *from, iso_compression how, iso_sink *to, iso_damage *damage) {
  const iso_blob_info *info = iso_blob_info_of(from);
  if (damage) *damage = (iso_damage){0};
  stream s = {.from = from, .path = info->path, .to = to, .damage = damage, .sound = to->bytes};
  s.in_capacity = iso_blob_is_remote(info->path) ? IN_BYTES_REMOTE : IN_BYTES_LOCAL;
  if (info->bytes < (int64_t)s.in_capacity) s.in_capacity = info->bytes > 0 ? (size_t)info->bytes : 1;
  s.in = malloc(s.in_capacity);
  s.out = malloc(OUT_BYTES);
  z_stream z = {0};
  bool z_ready = how == ISO_GZIP && inflateInit2(&z, GZIP_WINDOW) == Z_OK;
  ZSTD_DCtx *context = how == ISO_ZSTD ? ZSTD_createDCtx() : NULL;
  iso_transfer_init(&s.progress, how == ISO_PLAIN ? "copying" : "decompressing", info->path, info->bytes);
  iso_status status = ISO_OK;
  if (!s.in || !s.out || (how == ISO_GZIP && !z_ready) || (how == ISO_ZSTD && !context))
    status = iso_fail(ISO_ERR_MEMORY, "cannot decompress '%s': out of memory", info->path);
  else if (how == ISO_GZIP)
    status = inflate_members(&s, &z);
  else if (how == ISO_PLAIN)
    status = copy_plain(&s);
  else if (ZSTD_isError(ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG_MAX)))
    status = iso_fail(ISO_ERR_INTERNAL, "libzstd refuses windows of 2^%d bytes", (int)ZSTD_WINDOW_LOG_MAX);
  else
    status = decompress_frames(&s, context);
  if (damage && damage->is) status = ISO_OK;
  if (status == ISO_OK) iso_transfer_end(&s.progress, s.read);
  if (z_ready) inflateEnd(&z);
  ZSTD_freeDCtx(context);
  free(s.in);
  free(s.out);
  return status;
}

/* ---- blocks ---- */

/* Inflates members or zlib streams one after the other. Returns the cause, or NULL; *made is how many bytes came. */
static const char *inflate_block(z_stream *z, const void *from, size_t bytes, void *to, size_t to_bytes, size_t *made) {
  unsigned char nothing;
  z->next_in = (unsigned char *)(uintptr_t)from; /* zlib does not write there */
  z->avail_in = (uInt)bytes;
  z->next_out = to_bytes ? to : &nothing;
  z->avail_out = (uInt)to_bytes;
  for (;;) {
    int result = inflate(z, Z_FINISH);
    *made = to_bytes - z->avail_out;
    if (result == Z_STREAM_END) {
      if (z->avail_in == 0) return NULL;
      if (inflateReset(z) != Z_OK) return "zlib refuses to begin";
      continue;
    }
    if (result == Z_BUF_ERROR || result == Z_OK)
      return z->avail_out == 0 && z->avail_in > 0 ? "it holds more" : "it is truncated";
    return z->msg ? z->msg : "zlib gives no reason";
  }
}

iso_status iso_decompress_block(const char *what, iso_compression how, const void *from, size_t bytes, void *to,
                                size_t to_bytes) {
  const char *cause = NULL;
  size_t made = 0;
  if (bytes > INT_MAX || to_bytes > INT_MAX)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: a compressed block of %zu bytes is too large", what,
                    bytes > to_bytes ? bytes : to_bytes);
  if (how == ISO_PLAIN) {
    made = bytes;
    if (made == to_bytes && made > 0) memcpy(to, from, made);
  } else if (how == ISO_GZIP) {
    z_stream z = {0};
    if (inflateInit2(&z, GZIP_OR_ZLIB_WINDOW) != Z_OK)
      return iso_fail(ISO_ERR_MEMORY, "%s: no memory to decompress it", what);
    cause = inflate_block(&z, from, bytes, to, to_bytes, &made);
    inflateEnd(&z);
  } else {
    made = ZSTD_decompress(to, to_bytes, from, bytes);
    if (ZSTD_isError(made)) cause = ZSTD_getErrorName(made);
  }
  if (cause) return iso_fail(ISO_ERR_FORMAT, "%s: its %s block is corrupt: %s", what, iso_compression_name(how), cause);
  if (made != to_bytes)
    return iso_fail(ISO_ERR_FORMAT, "%s: its %s block holds %zu bytes, %zu are promised", what,
                    iso_compression_name(how), made, to_bytes);
  return ISO_OK;
}
