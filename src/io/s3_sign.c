/* SPDX-License-Identifier: Apache-2.0
 *
 * Signatures of S3 requests: AWS Signature Version 4, in the Authorization header.
 *
 * The request is written in a canonical form, hashed into a string to sign, and authenticated with a key that is
 * derived from the secret, the day, the region and the service. Facts from the "Authenticating Requests (AWS Signature
 * Version 4)" chapter of the Amazon S3 API reference; its examples are our tests.
 *
 * Invariants
 *  1. The result is a pure function of its arguments; the time is one of them.
 *  2. Derived keys are wiped before returning. The secret appears in no message.
 *
 * Paths are encoded once and never normalised, as S3 has it and other AWS services do not.
 */
#include "io/io.h"

#include <nettle/hmac.h>
#include <nettle/sha2.h>
#include <string.h>

static void hex_of(const uint8_t digest[SHA256_DIGEST_SIZE], char hex[65]) {
  for (int i = 0; i < SHA256_DIGEST_SIZE; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

static void sha256_hex(const char *text, size_t bytes, char hex[65]) {
  struct sha256_ctx hash;
  uint8_t digest[SHA256_DIGEST_SIZE];
  sha256_init(&hash);
  sha256_update(&hash, bytes, (const uint8_t *)text);
  sha256_digest(&hash, sizeof digest, digest);
  hex_of(digest, hex);
}

/* `out` may be `key`. */
static void hmac(const uint8_t *key, size_t key_bytes, const char *text, uint8_t out[SHA256_DIGEST_SIZE]) {
  struct hmac_sha256_ctx state;
  hmac_sha256_set_key(&state, key_bytes, key);
  hmac_sha256_update(&state, strlen(text), (const uint8_t *)text);
  hmac_sha256_digest(&state, SHA256_DIGEST_SIZE, out);
  explicit_bzero(&state, sizeof state);
}

void iso_s3_encode(iso_string *out, const char *text, size_t length, bool keep_slashes) {
  for (size_t i = 0; i < length; i++) {
    unsigned char c = (unsigned char)text[i];
    bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                 c == '.' || c == '~' || (c == '/' && keep_slashes);
    if (plain)
      iso_string_append(out, &text[i], 1);
    else
      iso_string_printf(out, "%%%02X", c);
  }
}

/* The canonical request, and the list of the signed headers' names. */
static void canonical(const iso_s3_to_sign *request, iso_string *out, iso_string *names) {
  iso_string_printf(out, "%s\n%s\n%s\n", request->method, request->path, request->query);
  for (size_t i = 0; i < request->header_count; i++) {
    iso_string_printf(out, "%s:%s\n", request->headers[i].name, request->headers[i].value);
    iso_string_printf(names, "%s%s", i ? ";" : "", request->headers[i].name);
  }
  iso_string_printf(out, "\n%s\n%s", names->data, request->payload_sha256);
}

static void signature_of(const iso_s3_to_sign *request, const char *secret, const char *day, const char *text,
                         char hex[65]) {
  iso_string first = {0};
  uint8_t key[SHA256_DIGEST_SIZE];
  iso_string_printf(&first, "AWS4%s", secret);
  hmac((const uint8_t *)first.data, first.length, day, key);
  hmac(key, sizeof key, request->region, key);
  hmac(key, sizeof key, "s3", key);
  hmac(key, sizeof key, "aws4_request", key);
  hmac(key, sizeof key, text, key);
  hex_of(key, hex);
  explicit_bzero(key, sizeof key);
  if (!iso_string_failed(&first)) explicit_bzero(first.data, first.length);
  iso_string_fini(&first);
}

iso_status iso_s3_sign(const iso_s3_to_sign *request, const char *access_key, const char *secret,
                       iso_string *authorization) {
  iso_string form = {0}, names = {0}, text = {0};
  char day[9], digest[65], signature[65];
  snprintf(day, sizeof day, "%.8s", request->time);
  canonical(request, &form, &names);
  sha256_hex(form.data, form.length, digest);
  iso_string_printf(&text, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s", request->time, day, request->region,
                    digest);
  signature_of(request, secret, day, text.data, signature);
  iso_string_printf(authorization,
                    "AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request, SignedHeaders=%s, Signature=%s", access_key,
                    day, request->region, names.data, signature);
  bool failed = iso_string_failed(&form) || iso_string_failed(&names) || iso_string_failed(&text) ||
                iso_string_failed(authorization);
  iso_string_fini(&form);
  iso_string_fini(&names);
  iso_string_fini(&text);
  return failed ? ISO_ERR_MEMORY : ISO_OK; /* logged already */
}
