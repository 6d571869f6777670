/* SPDX-License-Identifier: Apache-2.0
 *
 * Decompression: whole or an error. Every truncation, every flipped bit, several members, empty ones, other bytes after
 * the last one; and blocks of known size.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"
#include "io/scratch.h"

#include <zlib.h>
#include <zstd.h>

static char folder[128], in_path[160], out_path[160];
static iso_arena *arena;

static int no_sync(int fd) {
  return 0;
}

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(folder);
  snprintf(in_path, sizeof in_path, "%s/in", folder);
  snprintf(out_path, sizeof out_path, "%s/out", folder);
  arena = iso_arena_create();
  iso_os.fdatasync = no_sync; /* thousands of small files */
  return 0;
}

static int teardown(void **state) {
  iso_arena_destroy(&arena);
  scratch_remove(folder);
  return 0;
}

/* ---- making archives ---- */

static void add_gzip(iso_string *to, const void *data, size_t bytes) {
  unsigned char *buffer = malloc(bytes + bytes / 100 + 128);
  z_stream z = {0};
  assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + 15, 8, Z_DEFAULT_STRATEGY), Z_OK);
  z.next_in = (unsigned char *)(uintptr_t)data;
  z.avail_in = (uInt)bytes;
  z.next_out = buffer;
  z.avail_out = (uInt)(bytes + bytes / 100 + 128);
  assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
  iso_string_append(to, buffer, z.total_out);
  deflateEnd(&z);
  free(buffer);
}

static void add_zstd(iso_string *to, const void *data, size_t bytes) {
  size_t capacity = ZSTD_compressBound(bytes);
  char *buffer = malloc(capacity);
  ZSTD_CCtx *context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  size_t made = ZSTD_compress2(context, buffer, capacity, data, bytes);
  assert_false(ZSTD_isError(made));
  iso_string_append(to, buffer, made);
  ZSTD_freeCCtx(context);
  free(buffer);
}

static void add(iso_string *to, iso_compression how, const void *data, size_t bytes) {
  if (how == ISO_GZIP)
    add_gzip(to, data, bytes);
  else
    add_zstd(to, data, bytes);
}

/* Text that compresses, but not to nothing. */
static char *text_of(size_t bytes) {
  char *text = malloc(bytes + 1);
  uint32_t bits = 12345;
  for (size_t i = 0; i < bytes; i++) {
    bits = bits * 1664525u + 1013904223u;
    text[i] = (char)('a' + (bits >> 28));
  }
  text[bytes] = '\0';
  return text;
}

/* ---- running ---- */

static iso_status run_with(const void *archive, size_t bytes, iso_compression how, char **out, size_t *out_bytes,
                           iso_damage *damage) {
  iso_blob_info info;
  iso_blob *blob;
  iso_sink sink;
  scratch_write(in_path, archive, bytes);
  unlink(out_path);
  assert_int_equal(iso_blob_local(arena, in_path, &info), ISO_OK);
  assert_int_equal(iso_blob_open(&info, &blob), ISO_OK);
  assert_int_equal(iso_sink_open(&sink, out_path), ISO_OK);
  iso_status status = iso_decompress(blob, how, &sink, damage);
  assert_int_equal(iso_sink_commit(&sink), ISO_OK);
  assert_int_equal(iso_file_read(out_path, out, out_bytes), ISO_OK);
  iso_blob_close(&blob);
  return status;
}

static iso_status run(const void *archive, size_t bytes, iso_compression how, char **out, size_t *out_bytes) {
  return run_with(archive, bytes, how, out, out_bytes, NULL);
}

/* Damaged, and what is kept is how `text` begins, `least` bytes of it or more. Returns how many. */
static int64_t assert_keeps(const void *archive, size_t bytes, iso_compression how, const char *text, int64_t least,
                            const char *cause) {
  char *out;
  size_t out_bytes;
  iso_damage damage;
  assert_int_equal(run_with(archive, bytes, how, &out, &out_bytes, &damage), ISO_OK);
  assert_true(damage.is && damage.kept >= least && damage.kept <= (int64_t)out_bytes);
  assert_memory_equal(out, text, (size_t)damage.kept);
  if (!strstr(damage.cause, cause)) fail_msg("'%s' is not in: %s", cause, damage.cause);
  free(out);
  return damage.kept;
}

static void assert_gives(const iso_string *archive, iso_compression how, const char *text, size_t bytes) {
  char *out;
  size_t out_bytes;
  assert_int_equal(run(archive->data, archive->length, how, &out, &out_bytes), ISO_OK);
  assert_int_equal(out_bytes, bytes);
  assert_memory_equal(out, text, bytes);
  free(out);
}

static void assert_fails(const void *archive, size_t bytes, iso_compression how, const char *message) {
  char *out;
  size_t out_bytes;
  assert_int_equal(run(archive, bytes, how, &out, &out_bytes), ISO_ERR_FORMAT);
  if (!strstr(iso_last_error(), message)) fail_msg("'%s' is not in: %s", message, iso_last_error());
  free(out);
}

static const iso_compression kinds[] = {ISO_GZIP, ISO_ZSTD};

static void test_units(void **state) {
  size_t bytes = 3500000; /* several chunks in and out */
  char *text = text_of(bytes);
  for (int k = 0; k < 2; k++) {
    iso_string archive = {0};
    add(&archive, kinds[k], text, bytes);
    assert_gives(&archive, kinds[k], text, bytes);
    size_t first = archive.length;
    archive.length = 0;
    add(&archive, kinds[k], text, 100);
    add(&archive, kinds[k], "", 0);
    add(&archive, kinds[k], text + 100, bytes - 101);
    add(&archive, kinds[k], text + bytes - 1, 1);
    assert_true(archive.length > first / 2);
    assert_gives(&archive, kinds[k], text, bytes);
    size_t whole = archive.length;
    iso_string_append(&archive, "garbage!", 8);
    char message[64];
    snprintf(message, sizeof message, "from byte %zu on", whole);
    assert_fails(archive.data, archive.length, kinds[k], message);
    archive.length = 0;
    add(&archive, kinds[k], "", 0);
    assert_gives(&archive, kinds[k], "", 0);
    assert_fails("", 0, kinds[k], "truncated");
    assert_fails("this is no archive", 18, kinds[k], "corrupt at byte");
    iso_string_fini(&archive);
  }
  free(text);
}

static void test_zstd_skippable_and_window(void **state) {
  iso_string archive = {0};
  iso_string_append(&archive, "\x50\x2A\x4D\x18\x03\0\0\0abc", 11);
  add_zstd(&archive, "text", 4);
  iso_string_append(&archive, "\x5F\x2A\x4D\x18\0\0\0\0", 8);
  assert_gives(&archive, ISO_ZSTD, "text", 4);
  archive.length = 0;
  char buffer[256];
  ZSTD_CCtx *context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 28); /* as `zstd --long=28` on a pipe */
  ZSTD_inBuffer in = {"wide", 4, 0};
  ZSTD_outBuffer out = {buffer, sizeof buffer, 0};
  assert_false(ZSTD_isError(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush)));
  assert_int_equal(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0);
  iso_string_append(&archive, buffer, out.pos);
  assert_gives(&archive, ISO_ZSTD, "wide", 4);
  ZSTD_freeCCtx(context);
  iso_string_fini(&archive);
}

static void test_every_truncation(void **state) {
  char *text = text_of(300);
  for (int k = 0; k < 2; k++) {
    iso_string archive = {0};
    add(&archive, kinds[k], text, 300);
    size_t first = archive.length;
    add(&archive, kinds[k], text, 50);
    for (size_t bytes = 0; bytes < archive.length; bytes++)
      if (bytes != first) assert_fails(archive.data, bytes, kinds[k], bytes == first + 1 && k == 0 ? "'" : "truncated");
    iso_string_fini(&archive);
  }
  free(text);
}

/* A flipped bit is an error, or does not matter: a gzip header holds a time and a system's name. */
static void test_every_bit(void **state) {
  char *text = text_of(200);
  for (int k = 0; k < 2; k++) {
    iso_string archive = {0};
    add(&archive, kinds[k], text, 200);
    int unnoticed = 0;
    for (size_t bit = 0; bit < archive.length * 8; bit++) {
      archive.data[bit / 8] = (char)(archive.data[bit / 8] ^ (1 << bit % 8));
      char *out;
      size_t bytes;
      iso_status status = run(archive.data, archive.length, kinds[k], &out, &bytes);
      if (status == ISO_OK) {
        unnoticed++;
        assert_int_equal(bytes, 200);
        assert_memory_equal(out, text, 200);
      } else {
        assert_true(status == ISO_ERR_FORMAT || (k == 1 && status == ISO_ERR_UNSUPPORTED)); /* "has a dictionary" */
      }
      free(out);
      archive.data[bit / 8] = (char)(archive.data[bit / 8] ^ (1 << bit % 8));
    }
    assert_true(unnoticed <= (k == 0 ? 60 : 8));
    iso_string_fini(&archive);
  }
  free(text);
}

/* Of what is cut all that came out is kept; of what is wrong in between, the units before. */
static void test_what_is_kept(void **state) {
  char *text = text_of(300000);
  for (int k = 0; k < 2; k++) {
    iso_string archive = {0};
    add(&archive, kinds[k], text, 1000);
    const size_t first = archive.length;
    add(&archive, kinds[k], text + 1000, 299000);
    int64_t before = 0;
    for (size_t bytes = 0; bytes < archive.length; bytes += bytes < first + 50 ? 1 : 9973) {
      if (bytes == first) continue;
      const bool inside = bytes > first + 1;
      const int64_t kept =
          assert_keeps(archive.data, bytes, kinds[k], text, bytes < first ? 0 : 1000, inside ? "trunc" : "");
      assert_true(kept >= before);
      before = kept;
    }
    assert_true(before > 200000); /* most of the second unit */
    for (size_t at = first + 30; at < archive.length; at += 7919) {
      archive.data[at] ^= 0x10;
      char *out;
      size_t bytes;
      iso_damage damage;
      assert_int_equal(run_with(archive.data, archive.length, kinds[k], &out, &bytes, &damage), ISO_OK);
      assert_true(damage.is);
      if (strstr(damage.cause, "corrupt")) assert_int_equal(damage.kept, 1000);
      free(out);
      archive.data[at] ^= 0x10;
    }
    iso_string_append(&archive, "garbage!", 8);
    assert_keeps(archive.data, archive.length, kinds[k], text, 300000, "the archive has other bytes after its last");
    archive.length -= 8 + 1000;
    char zeros[500] = {0};
    iso_string_append(&archive, zeros, sizeof zeros); /* a file of full length of which the end was not written */
    assert_int_equal(assert_keeps(archive.data, archive.length, kinds[k], text, 1000, "the archive is "), 1000);
    iso_string_fini(&archive);
  }
  char *out;
  size_t bytes;
  iso_damage damage;
  iso_string archive = {0};
  add(&archive, ISO_GZIP, text, 500);
  assert_int_equal(run_with(archive.data, archive.length, ISO_GZIP, &out, &bytes, &damage), ISO_OK);
  assert_false(damage.is);
  free(out);
  iso_string_fini(&archive);
  free(text);
}

static iso_status kind_of(const char *name, const void *bytes, size_t count, iso_compression *how) {
  char path[192];
  iso_blob_info info;
  iso_blob *blob;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  scratch_write(path, bytes, count);
  assert_int_equal(iso_blob_local(arena, path, &info), ISO_OK);
  assert_int_equal(iso_blob_open(&info, &blob), ISO_OK);
  iso_status status = iso_compression_of(blob, how);
  iso_blob_close(&blob);
  return status;
}

static void test_kind(void **state) {
  iso_compression how;
  iso_string gzip = {0}, zstd = {0};
  add_gzip(&gzip, "x", 1);
  add_zstd(&zstd, "x", 1);
  assert_int_equal(kind_of("a.txt", "plain", 5, &how), ISO_OK);
  assert_int_equal(how, ISO_PLAIN);
  assert_int_equal(kind_of("empty.txt", "", 0, &how), ISO_OK);
  assert_int_equal(how, ISO_PLAIN);
  assert_int_equal(kind_of("a.jsonl.gz", gzip.data, gzip.length, &how), ISO_OK);
  assert_int_equal(how, ISO_GZIP);
  assert_int_equal(kind_of("a.jsonl.zst", zstd.data, zstd.length, &how), ISO_OK);
  assert_int_equal(how, ISO_ZSTD);
  assert_int_equal(kind_of("b.zstd", "\x51\x2A\x4D\x18\0\0\0\0", 8, &how), ISO_OK);
  assert_int_equal(how, ISO_ZSTD);
  assert_int_equal(kind_of("a.txt", gzip.data, gzip.length, &how), ISO_OK);
  assert_int_equal(how, ISO_GZIP);
  assert_int_equal(kind_of("b.gz", zstd.data, zstd.length, &how), ISO_ERR_FORMAT);
  assert_int_equal(kind_of("b.zst", "plain", 5, &how), ISO_ERR_FORMAT);
  assert_int_equal(kind_of("empty.gz", "", 0, &how), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "it is empty"));
  iso_string_fini(&gzip);
  iso_string_fini(&zstd);
}

static void test_blocks(void **state) {
  char *text = text_of(5000), *out = malloc(5001);
  for (int k = 0; k < 2; k++) {
    iso_string block = {0};
    add(&block, kinds[k], text, 5000);
    assert_int_equal(iso_decompress_block("page", kinds[k], block.data, block.length, out, 5000), ISO_OK);
    assert_memory_equal(out, text, 5000);
    assert_int_equal(iso_decompress_block("page", kinds[k], block.data, block.length, out, 4999), ISO_ERR_FORMAT);
    assert_int_equal(iso_decompress_block("page", kinds[k], block.data, block.length, out, 5001), ISO_ERR_FORMAT);
    assert_int_equal(iso_decompress_block("page", kinds[k], block.data, block.length, out, 0), ISO_ERR_FORMAT);
    for (size_t bytes = 0; bytes < block.length; bytes += 7)
      assert_int_equal(iso_decompress_block("page", kinds[k], block.data, bytes, out, 5000), ISO_ERR_FORMAT);
    iso_string_append(&block, "x", 1);
    assert_int_equal(iso_decompress_block("page", kinds[k], block.data, block.length, out, 5000), ISO_ERR_FORMAT);
    block.length = 0;
    add(&block, kinds[k], text, 3000);
    add(&block, kinds[k], text + 3000, 2000);
    memset(out, 0, 5000);
    assert_int_equal(iso_decompress_block("page", kinds[k], block.data, block.length, out, 5000), ISO_OK);
    assert_memory_equal(out, text, 5000);
    block.length = 0;
    add(&block, kinds[k], "", 0);
    assert_int_equal(iso_decompress_block("page", kinds[k], block.data, block.length, NULL, 0), ISO_OK);
    iso_string_fini(&block);
  }
  unsigned char zlib_block[6000];
  uLongf length = sizeof zlib_block;
  assert_int_equal(compress(zlib_block, &length, (unsigned char *)text, 5000), Z_OK);
  assert_int_equal(iso_decompress_block("page", ISO_GZIP, zlib_block, length, out, 5000), ISO_OK);
  assert_int_equal(iso_decompress_block("page", ISO_PLAIN, text, 5000, out, 5000), ISO_OK);
  assert_int_equal(iso_decompress_block("page 7 of 'f'", ISO_PLAIN, text, 4999, out, 5000), ISO_ERR_FORMAT);
  assert_string_equal(iso_last_error(), "page 7 of 'f': its plain block holds 4999 bytes, 5000 are promised");
  free(text);
  free(out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_units, setup, teardown),
      cmocka_unit_test_setup_teardown(test_zstd_skippable_and_window, setup, teardown),
      cmocka_unit_test_setup_teardown(test_every_truncation, setup, teardown),
      cmocka_unit_test_setup_teardown(test_every_bit, setup, teardown),
      cmocka_unit_test_setup_teardown(test_what_is_kept, setup, teardown),
      cmocka_unit_test_setup_teardown(test_kind, setup, teardown),
      cmocka_unit_test_setup_teardown(test_blocks, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
