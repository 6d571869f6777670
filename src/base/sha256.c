/* SPDX-License-Identifier: Apache-2.0
 *
 * sha256.c: SHA-256 (digests of runs, fingerprints of tokenizers) over nettle.
 *
 * A hash that could not be allocated is NULL; update and finish accept it, and finish then gives "", which equals no
 * digest.
 */
#include "base/base.h"

#include <nettle/sha2.h>
#include <stdlib.h>

struct iso_sha256 {
  struct sha256_ctx context;
};

iso_sha256 *iso_sha256_create(void) {
  iso_sha256 *hash = malloc(sizeof *hash);
  if (!hash) {
    iso_fail(ISO_ERR_MEMORY, "cannot create a SHA-256 state: out of memory");
    return NULL;
  }
  sha256_init(&hash->context);
  return hash;
}

void iso_sha256_update(iso_sha256 *hash, const void *data, size_t bytes) {
  if (hash && bytes > 0) sha256_update(&hash->context, bytes, data);
}

void iso_sha256_finish(iso_sha256 **hash, char hex[65]) {
  static const char digits[] = "0123456789abcdef";
  hex[0] = '\0';
  if (!*hash) return;
  uint8_t digest[SHA256_DIGEST_SIZE];
  sha256_digest(&(*hash)->context, sizeof digest, digest);
  for (size_t i = 0; i < sizeof digest; i++) {
    hex[2 * i] = digits[digest[i] >> 4];
    hex[2 * i + 1] = digits[digest[i] & 15];
  }
  hex[64] = '\0';
  free(*hash);
  *hash = NULL;
}
