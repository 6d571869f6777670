/* SPDX-License-Identifier: Apache-2.0
 *
 * Where S3 is and who asks: the names that the AWS tools use.
 *
 *   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; else the profile AWS_PROFILE ("default") of
 *   ~/.aws/credentials (AWS_SHARED_CREDENTIALS_FILE)
 *   AWS_REGION, AWS_DEFAULT_REGION; else the profile's region in ~/.aws/config (AWS_CONFIG_FILE); else us-east-1
 *   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL: another service than Amazon's, with the bucket as first part of the path
 *
 * Invariants
 *  1. What is missing is said before any request is made.
 *  2. Nothing that goes into a header or an URL holds a control character or a space.
 *  3. Secrets appear in no message.
 */
#include "io/io.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *environment(const char *first, const char *second) {
  const char *value = getenv(first);
  if ((!value || !*value) && second) value = getenv(second);
  return value && *value ? value : NULL;
}

/* ---- the files of the AWS tools ---- */

typedef struct slice {
  const char *text;
  size_t length;
} slice;

static slice trimmed(const char *from, const char *end) {
  while (from < end && (unsigned char)*from <= ' ') from++;
  while (end > from && (unsigned char)end[-1] <= ' ') end--;
  return (slice){from, (size_t)(end - from)};
}

static bool same(slice a, const char *b) {
  return a.length == strlen(b) && strncasecmp(a.text, b, a.length) == 0;
}

/* The value of `key` in [section] of an INI file, in the arena; NULL if there is none. */
static const char *ini_value(iso_arena *arena, const char *text, const char *section, const char *key) {
  bool inside = false;
  for (const char *at = text; *at;) {
    const char *end = at + strcspn(at, "\n");
    slice line = trimmed(at, end);
    at = *end ? end + 1 : end;
    if (line.length == 0 || *line.text == '#' || *line.text == ';') continue;
    if (*line.text == '[') {
      const char *close = memchr(line.text, ']', line.length);
      slice name = close ? trimmed(line.text + 1, close) : (slice){line.text, 0};
      inside = name.length == strlen(section) && memcmp(name.text, section, name.length) == 0;
      continue;
    }
    const char *equals = memchr(line.text, '=', line.length);
    if (!inside || !equals || !same(trimmed(line.text, equals), key)) continue;
    slice value = trimmed(equals + 1, line.text + line.length);
    return value.length ? iso_arena_printf(arena, "%.*s", (int)value.length, value.text) : NULL;
  }
  return NULL;
}

/* Text of a file below ~/.aws, NULL if there is none; free it. *path is where it would be. */
static iso_status aws_file(iso_arena *arena, const char *variable, const char *name, const char **path, char **text) {
  const char *named = environment(variable, NULL), *home = environment("HOME", NULL);
  size_t bytes;
  *text = NULL;
  *path = named ? iso_arena_strdup(arena, named) : iso_arena_printf(arena, "%s/.aws/%s", home ? home : "", name);
  if (!*path) return iso_fail(ISO_ERR_MEMORY, "no memory to look for S3 credentials");
  if (!iso_path_exists(*path)) return ISO_OK;
  return iso_file_read(*path, text, &bytes);
}

/* ---- the config ---- */

/* "" for NULL. */
static const char *kept(iso_arena *arena, const char *value) {
  return iso_arena_strdup(arena, value ? value : "");
}

static iso_status credentials(iso_s3_config *config, const char *profile) {
  const char *access = environment("AWS_ACCESS_KEY_ID", NULL), *secret = environment("AWS_SECRET_ACCESS_KEY", NULL);
  if (access && !secret)
    return iso_fail(ISO_ERR_CONFIG, "AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not; set both for s3:// paths");
  if (secret && !access)
    return iso_fail(ISO_ERR_CONFIG, "AWS_SECRET_ACCESS_KEY is set, AWS_ACCESS_KEY_ID is not; set both for s3:// paths");
  if (access) {
    config->access_key = kept(config->arena, access);
    config->secret_key = kept(config->arena, secret);
    config->token = kept(config->arena, environment("AWS_SESSION_TOKEN", NULL));
    return ISO_OK;
  }
  const char *path;
  char *text;
  ISO_TRY(aws_file(config->arena, "AWS_SHARED_CREDENTIALS_FILE", "credentials", &path, &text));
  if (text) {
    config->access_key = ini_value(config->arena, text, profile, "aws_access_key_id");
    config->secret_key = ini_value(config->arena, text, profile, "aws_secret_access_key");
    config->token = kept(config->arena, ini_value(config->arena, text, profile, "aws_session_token"));
    explicit_bzero(text, strlen(text));
  }
  free(text);
  if (config->access_key && config->secret_key) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG,
                  "no S3 credentials: AWS_ACCESS_KEY_ID is not set and '%s' %s [%s] %s; set AWS_ACCESS_KEY_ID and "
                  "AWS_SECRET_ACCESS_KEY",
                  path, text ? "has no" : "(profile", profile, text ? "with both keys" : "of it) does not exist");
}

static iso_status region(iso_s3_config *config, const char *profile) {
  const char *named = environment("AWS_REGION", "AWS_DEFAULT_REGION"), *path;
  char *text;
  if (!named) {
    ISO_TRY(aws_file(config->arena, "AWS_CONFIG_FILE", "config", &path, &text));
    const char *section =
        strcmp(profile, "default") == 0 ? profile : iso_arena_printf(config->arena, "profile %s", profile);
    if (text && section) named = ini_value(config->arena, text, section, "region");
    free(text);
  }
  config->region = kept(config->arena, named ? named : "us-east-1");
  return ISO_OK;
}

static iso_status endpoint(iso_s3_config *config) {
  const char *named = environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  char *copy = iso_arena_strdup(config->arena, named ? named : "");
  config->endpoint = copy;
  if (!named || !copy) return ISO_OK;
  size_t length = strlen(copy), scheme = strncmp(copy, "https://", 8) == 0  ? 8
                                         : strncmp(copy, "http://", 7) == 0 ? 7
                                                                            : 0;
  while (length > scheme && copy[length - 1] == '/') copy[--length] = '\0';
  if (scheme == 0 || length == scheme || strpbrk(copy, "?#@\\\"<>"))
    return iso_fail(ISO_ERR_CONFIG, "AWS_ENDPOINT_URL is '%s'; it must be http://HOST[:PORT] or https://HOST[:PORT]",
                    named);
  return ISO_OK;
}

static iso_status check_text(const char *name, const char *value) {
  if (!value) return iso_fail(ISO_ERR_MEMORY, "no memory for S3 credentials");
  for (const char *c = value; *c; c++)
    if (*c <= ' ' || *c > '~')
      return iso_fail(ISO_ERR_CONFIG, "%s has a space, a control character or one that is not ASCII; set it again",
                      name);
  return ISO_OK;
}

static iso_status fill(iso_s3_config *config) {
  /* Amazon's are in lower case; other services have names like RegionOne. */
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  const char *profile = environment("AWS_PROFILE", NULL);
  if (!profile) profile = "default";
  ISO_TRY(credentials(config, profile));
  ISO_TRY(region(config, profile));
  ISO_TRY(endpoint(config));
  ISO_TRY(check_text("the S3 access key", config->access_key));
  ISO_TRY(check_text("the S3 secret key", config->secret_key));
  ISO_TRY(check_text("the S3 session token", config->token));
  ISO_TRY(check_text("AWS_REGION", config->region));
  ISO_TRY(check_text("AWS_ENDPOINT_URL", config->endpoint));
  if (strspn(config->region, allowed) != strlen(config->region))
    return iso_fail(ISO_ERR_CONFIG, "AWS_REGION is '%s'; a region is written like eu-west-1", config->region);
  return ISO_OK;
}

iso_status iso_s3_config_init(iso_s3_config *config) {
  *config = (iso_s3_config){.arena = iso_arena_create()};
  if (!config->arena) return iso_fail(ISO_ERR_MEMORY, "no memory for S3 credentials");
  iso_status status = fill(config);
  if (status != ISO_OK) iso_s3_config_fini(config);
  return status;
}

void iso_s3_config_fini(iso_s3_config *config) {
  if (config->secret_key) explicit_bzero((char *)(uintptr_t)config->secret_key, strlen(config->secret_key));
  iso_arena_destroy(&config->arena);
  *config = (iso_s3_config){0};
}

/* ---- places ---- */

iso_status iso_s3_path_split(const char *path, char bucket[64], const char **key) {
  const char *name = path + 5; /* "s3://" */
  size_t length = strcspn(name, "/");
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  *key = name[length] ? name + length + 1 : name + length;
  if (length < 3 || length > 63 || strspn(name, allowed) < length || name[0] == '.' || name[0] == '-')
    return iso_fail(ISO_ERR_CONFIG, "'%s' names no bucket; write s3://BUCKET/KEY or s3://BUCKET/PREFIX/", path);
  if (strlen(*key) > 1024)
    return iso_fail(ISO_ERR_CONFIG, "the key of '%s' has more than 1,024 bytes, which S3 does not have", path);
  memcpy(bucket, name, length);
  bucket[length] = '\0';
  return ISO_OK;
}

iso_status iso_s3_place_init(iso_s3_place *place, const iso_s3_config *config, const char *bucket, const char *key) {
  *place = (iso_s3_place){0};
  const char *scheme = "https";
  bool in_path = true;
  if (*config->endpoint) {
    const char *host = strstr(config->endpoint, "://") + 3;
    size_t length = strcspn(host, "/");
    scheme = config->endpoint[4] == 's' ? "https" : "http";
    size_t named = length; /* without the scheme's own port, as the Host header has it */
    const char *port = *scheme && strcmp(scheme, "https") == 0 ? ":443" : ":80";
    if (length > strlen(port) && strncmp(host + length - strlen(port), port, strlen(port)) == 0) named -= strlen(port);
    iso_string_append(&place->host, host, named);
    iso_s3_encode(&place->path, host + length, strlen(host + length), true);
  } else {
    in_path = strchr(bucket, '.') != NULL; /* Amazon's certificate does not cover names with dots */
    iso_string_printf(&place->host, "%s%ss3.%s.amazonaws.com%s", in_path ? "" : bucket, in_path ? "" : ".",
                      config->region, strncmp(config->region, "cn-", 3) == 0 ? ".cn" : "");
  }
  if (in_path) iso_string_printf(&place->path, "/%s", bucket);
  iso_string_append(&place->path, "/", 1);
  iso_s3_encode(&place->path, key, strlen(key), true);
  iso_string_printf(&place->url, "%s://%s%s", scheme, place->host.data, place->path.data);
  if (iso_string_failed(&place->url) || iso_string_failed(&place->host) || iso_string_failed(&place->path)) {
    iso_s3_place_fini(place);
    return ISO_ERR_MEMORY; /* logged already */
  }
  return ISO_OK;
}

void iso_s3_place_fini(iso_s3_place *place) {
  iso_string_fini(&place->url);
  iso_string_fini(&place->host);
  iso_string_fini(&place->path);
}
