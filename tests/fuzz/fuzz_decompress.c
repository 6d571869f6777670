/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a gzip or Zstandard file, as one stream and as a block: the two ways must agree, and the file that comes
 * out must have the size that the sink counted. Damage taken instead of an error changes nothing of what comes out. The
 * first byte chooses the format. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LIMIT_BYTES = 1 << 20 };

static char out[LIMIT_BYTES];
static int64_t out_bytes;

/* Files are memory; beyond the limit the "disk" is full. */
static int memory_open(const char *path, int flags, int mode) {
  return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static ssize_t memory_pwrite(int fd, const void *bytes, size_t count, int64_t offset) {
  if (offset + (int64_t)count > LIMIT_BYTES) {
    errno = ENOSPC;
    return -1;
  }
  memcpy(out + offset, bytes, count);
  out_bytes = offset + (int64_t)count;
  return (ssize_t)count;
}

static const uint8_t *in;
static size_t in_bytes;

static ssize_t memory_pread(int fd, void *bytes, size_t count, int64_t offset) {
  if ((size_t)offset >= in_bytes) return 0;
  if (count > in_bytes - (size_t)offset) count = in_bytes - (size_t)offset;
  memcpy(bytes, in + offset, count);
  return (ssize_t)count;
}

static int memory_stat(const char *path, struct stat *info) {
  *info = (struct stat){.st_mode = S_IFREG, .st_size = (off_t)in_bytes};
  return 0;
}

static int nothing(const char *path) {
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  iso_log_quiet(true);
  iso_os.open = memory_open, iso_os.pwrite = memory_pwrite, iso_os.pread = memory_pread, iso_os.stat = memory_stat;
  iso_os.unlink = nothing;
  iso_compression how = data[0] & 1 ? ISO_ZSTD : ISO_GZIP, named;
  in = data + 1;
  in_bytes = size - 1;
  out_bytes = 0;
  char path[] = "file";
  iso_blob_info info = {.path = path, .bytes = (int64_t)in_bytes, .version = "0.000000000"};
  iso_blob *blob;
  iso_sink sink;
  if (iso_blob_open(&info, &blob) != ISO_OK || iso_sink_open(&sink, "out") != ISO_OK) abort();
  if (iso_compression_of(blob, &named) != ISO_OK) abort();
  iso_status status = iso_decompress(blob, how, &sink, NULL);
  if (status == ISO_OK && (sink.bytes != out_bytes || sink.crc != iso_crc32c(0, out, (size_t)out_bytes))) abort();
  iso_sink_abandon(&sink);
  const int64_t whole = out_bytes;
  out_bytes = 0;
  iso_damage damage;
  if (iso_sink_open(&sink, "out") != ISO_OK) abort();
  const iso_status again = iso_decompress(blob, how, &sink, &damage);
  if (again != (damage.is ? ISO_OK : status) || (damage.is && status != ISO_ERR_FORMAT) || sink.bytes != whole) abort();
  if (damage.is && (damage.kept < 0 || damage.kept > sink.bytes || !damage.cause[0])) abort();
  iso_sink_abandon(&sink);
  iso_blob_close(&blob);
  if (status == ISO_OK) {
    char *block = malloc((size_t)out_bytes + 1);
    if (!block) abort();
    status = iso_decompress_block("block", how, in, in_bytes, block, (size_t)out_bytes);
    /* libzstd's stream passes over a compressed block of no bytes, which the format does not have; its other way
     * refuses it. */
    if (status != ISO_OK && !(how == ISO_ZSTD && status == ISO_ERR_FORMAT)) abort();
    if (status == ISO_OK && memcmp(block, out, (size_t)out_bytes) != 0) abort();
    free(block);
  } else if (in_bytes > 0) {
    char block[777];
    (void)!iso_decompress_block("block", how, in, in_bytes, block, in[0] * 3u);
  }
  return 0;
}
