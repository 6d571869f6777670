/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects in S3 that are made, and what is needed around that: whole objects in one request, large ones in parts, new
 * ones only if there is none of that name, and deleting.
 *
 * An object exists when its request has succeeded, whole, or it does not. The answer to a request that succeeded may be
 * lost; the same request again is then harmless, or it is told that there is one already (412), and what is there
 * is compared with what was sent: equal bytes are success.
 *
 * Invariants
 *  1. Every content that is sent carries its CRC-32C, taken from the caller's buffer, and the service refuses one that
 *     does not fit. If the answer says a CRC-32C it must be that.
 *  2. A name that was asked for as new is never replaced.
 *  3. An upload in parts that fails is aborted; what a killed process left is found by iso_s3_uploads_abort.
 */
#include "io/io.h"

#include <stdlib.h>
#include <string.h>

enum { COMPARE_BYTES = 4 << 20, ABORT_ROUNDS = 100, DELETE_AT_ONCE = 500 };

static iso_status out_of_memory(const char *path) {
  return iso_fail(ISO_ERR_MEMORY, "cannot write '%s': out of memory", path);
}

static void error_of(const iso_http_response *response, iso_s3_error *error) {
  iso_s3_error_read(error, response->text.data ? response->text.data : "", response->text.length);
}

/* An answer that says that the object, or the upload, is not there; a bucket that is not is another matter. */
static bool is_missing(const iso_http_response *response) {
  iso_s3_error error;
  if (!response->complete || response->status != 404) return false;
  error_of(response, &error);
  return strcmp(error.code, "NoSuchBucket") != 0;
}

/* There was an answer, and nobody has stopped. */
static bool is_answered(iso_status status, const iso_http_response *response) {
  return status == ISO_OK && response->complete && !response->stopped && !iso_http_stopping();
}

/* Ends the response and waits. */
static iso_status again(iso_s3_job *j, iso_http_response *response) {
  const double wanted_s = response->retry_after_s;
  iso_http_response_fini(response);
  return iso_s3_pause(j, wanted_s);
}

/* ---- what is there ---- */

typedef enum likeness { SAME, DIFFERENT, MISSING } likeness;

/* Whether the object of that name holds these bytes. */
static iso_status compare(const char *path, int64_t bytes, uint32_t crc, likeness *out) {
  iso_blob_info info;
  bool missing;
  ISO_TRY(iso_s3_head(path, &info, &missing));
  *out = missing ? MISSING : DIFFERENT;
  if (missing || info.bytes != bytes) return ISO_OK;
  const size_t most = bytes < COMPARE_BYTES ? (size_t)bytes : COMPARE_BYTES;
  char *buffer = malloc(most + 1);
  if (!buffer) return out_of_memory(path);
  info.path = (char *)(uintptr_t)path;
  uint32_t there = 0;
  iso_status status = ISO_OK;
  for (int64_t at = 0; at < bytes && status == ISO_OK;) {
    const int64_t part = bytes - at < (int64_t)most ? bytes - at : (int64_t)most;
    status = iso_s3_read(&info, at, part, buffer);
    if (status == ISO_OK) there = iso_crc32c(there, buffer, (size_t)part);
    at += part;
  }
  free(buffer);
  if (status == ISO_OK && there == crc) *out = SAME;
  return status;
}

/* ---- whole objects ---- */

/* The name is taken: by us, by others, or by nobody any more (then *over stays false). */
static iso_status meet_taken(const char *path, int64_t bytes, uint32_t crc, bool *taken, bool *over) {
  likeness is;
  ISO_TRY(compare(path, bytes, crc, &is));
  *over = is != MISSING;
  *taken = is == DIFFERENT;
  return ISO_OK;
}

static iso_status check_stored(const iso_s3_job *j, const iso_http_response *response) {
  if (!response->checksum[0] || strchr(response->checksum, '-') || strcmp(response->checksum, j->checksum) == 0)
    return ISO_OK;
  return iso_fail(ISO_ERR_IO,
                  "S3 stored other bytes of '%s' than were sent (CRC-32C %s instead of %s); check the "
                  "network and the service",
                  j->path, response->checksum, j->checksum);
}

iso_status iso_s3_put(const char *path, const void *data, size_t bytes, bool *taken) {
  char bucket[64];
  const char *key;
  ISO_TRY(iso_s3_path_split(path, bucket, &key));
  iso_s3_job j = {.path = path,
                  .bucket = bucket,
                  .key = key,
                  .doing = "write",
                  .method = "PUT",
                  .query = "",
                  .first = -1,
                  .sends = true,
                  .checksummed = true,
                  .only_new = taken != NULL,
                  .data = data,
                  .data_bytes = bytes};
  if (taken) *taken = false;
  iso_s3_job_begin(&j, iso_s3_give_up_s());
  for (;;) {
    iso_http_response response = {0};
    iso_status status = ISO_OK;
    bool over = true;
    iso_s3_verdict result = ISO_S3_AGAIN;
    status = iso_s3_attempt(&j, &response);
    const bool answered = is_answered(status, &response);
    if (status != ISO_OK) {
      result = ISO_S3_OVER;
    } else if (answered && taken && response.status == 412) {
      status = meet_taken(path, (int64_t)bytes, iso_crc32c(0, data, bytes), taken, &over);
      result = over || status != ISO_OK ? ISO_S3_OVER : ISO_S3_AGAIN;
      snprintf(j.cause, sizeof j.cause, "HTTP 412, but it is not there");
    } else if (answered && (response.status == 409 || (taken && is_missing(&response)))) {
      snprintf(j.cause, sizeof j.cause, "HTTP %d: another request writes or deletes it", response.status);
    } else {
      result = iso_s3_judge(&j, &response, &status);
      if (result == ISO_S3_DONE) status = check_stored(&j, &response);
    }
    if (result != ISO_S3_AGAIN) {
      iso_http_response_fini(&response);
      return status;
    }
    ISO_TRY(again(&j, &response));
  }
}

/* DELETE of an object or of an upload; one that is gone is a success. */
static iso_status remove_it(const char *path, const char *bucket, const char *key, const char *query) {
  iso_s3_job j = {.path = path,
                  .bucket = bucket,
                  .key = key,
                  .doing = *query ? "abort the upload of" : "delete",
                  .method = "DELETE",
                  .query = query,
                  .first = -1};
  iso_s3_job_begin(&j, iso_s3_give_up_s());
  for (;;) {
    iso_http_response response = {0};
    iso_status status = iso_s3_attempt(&j, &response);
    iso_s3_verdict result = ISO_S3_OVER;
    const bool gone = status == ISO_OK && is_missing(&response);
    if (status == ISO_OK && !gone) result = iso_s3_judge(&j, &response, &status);
    if (gone || result != ISO_S3_AGAIN) {
      iso_http_response_fini(&response);
      return status;
    }
    ISO_TRY(again(&j, &response));
  }
}

iso_status iso_s3_delete(const char *path) {
  char bucket[64];
  const char *key;
  ISO_TRY(iso_s3_path_split(path, bucket, &key));
  return remove_it(path, bucket, key, "");
}

static void escape(iso_string *out, const char *text) {
  for (; *text; text++) {
    const char *instead = *text == '&' ? "&amp;" : *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : NULL;
    if (instead)
      iso_string_append(out, instead, strlen(instead));
    else if ((unsigned char)*text < ' ')
      iso_string_printf(out, "&#%d;", *text);
    else
      iso_string_append(out, text, 1);
  }
}

static const char *find_error(void *context, const char *path, const char *text, size_t length) {
  char *code = context;
  if (strcmp(path, "DeleteResult/Error/Code") == 0 && !*code) snprintf(code, 64, "%.*s", (int)length, text);
  return NULL;
}

/* What a service that does not know the request says. */
static bool is_unknown_request(const iso_http_response *response) {
  return response->complete && (response->status == 400 || response->status == 405 || response->status == 501);
}

/* At most DELETE_AT_ONCE of one bucket. *known false: the service does not know how. */
static iso_status delete_some(const char *const *paths, size_t count, bool *known) {
  char bucket[64], failed[64] = "";
  const char *key;
  iso_string body = {0};
  iso_status status = ISO_OK;
  iso_string_printf(&body, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>");
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    status = iso_s3_path_split(paths[i], bucket, &key);
    if (status != ISO_OK) break;
    iso_string_printf(&body, "<Object><Key>");
    escape(&body, key);
    iso_string_printf(&body, "</Key></Object>");
  }
  iso_string_printf(&body, "</Delete>");
  if (status == ISO_OK && iso_string_failed(&body)) status = ISO_ERR_MEMORY;
  iso_s3_job j = {.path = paths[0],
                  .bucket = bucket,
                  .key = "",
                  .doing = "delete",
                  .method = "POST",
                  .query = "delete=",
                  .first = -1,
                  .sends = true,
                  .checksummed = true,
                  .slow_answer = true,
                  .data = body.data,
                  .data_bytes = body.length};
  if (status == ISO_OK) iso_s3_job_begin(&j, iso_s3_give_up_s());
  for (bool over = false; status == ISO_OK && !over;) {
    iso_http_response response = {0};
    iso_s3_verdict result = ISO_S3_OVER;
    status = iso_s3_attempt(&j, &response);
    *known = status != ISO_OK || !is_unknown_request(&response);
    if (status == ISO_OK && *known) result = iso_s3_judge(&j, &response, &status);
    if (result == ISO_S3_DONE)
      (void)!iso_xml_walk(response.text.data ? response.text.data : "", response.text.length, find_error, failed);
    over = result != ISO_S3_AGAIN;
    if (over)
      iso_http_response_fini(&response);
    else
      status = again(&j, &response);
  }
  if (status == ISO_OK && *failed)
    status = iso_fail(ISO_ERR_IO, "S3 does not delete all of %zu objects as '%s': %s", count, paths[0], failed);
  iso_string_fini(&body);
  return status;
}

iso_status iso_s3_delete_all(const char *const *paths, size_t count) {
  bool known = true;
  while (count > 0) {
    const size_t some = known ? (count < DELETE_AT_ONCE ? count : DELETE_AT_ONCE) : 1;
    if (some == 1)
      ISO_TRY(iso_s3_delete(paths[count - 1]));
    else
      ISO_TRY(delete_some(paths + count - some, some, &known));
    if (known || some == 1) count -= some;
  }
  return ISO_OK;
}

/* NULL, or what is wrong with a body that came. */
static const char *check_body(const iso_http_response *response, size_t most) {
  char text[9];
  if (response->text.length > most) return "it is larger than it can be";
  if (!response->checksum[0] || strchr(response->checksum, '-')) return NULL; /* not said, or of parts */
  iso_s3_checksum_text(iso_crc32c(0, response->text.data, response->text.length), text);
  return strcmp(text, response->checksum) == 0 ? NULL : "its CRC-32C is not the one that S3 has";
}

iso_status iso_s3_get(const char *path, size_t most, char **data, size_t *bytes, bool *missing) {
  char bucket[64];
  const char *key;
  *data = NULL;
  *bytes = 0;
  *missing = false;
  ISO_TRY(iso_s3_path_split(path, bucket, &key));
  iso_s3_job j = {.path = path,
                  .bucket = bucket,
                  .key = key,
                  .doing = "read",
                  .method = "GET",
                  .query = "",
                  .first = -1,
                  .wants_checksum = true};
  iso_s3_job_begin(&j, iso_s3_give_up_s());
  for (;;) {
    iso_http_response response = {0};
    iso_status status = iso_s3_attempt(&j, &response);
    iso_s3_verdict result = ISO_S3_OVER;
    *missing = status == ISO_OK && is_missing(&response);
    if (status == ISO_OK && !*missing) result = iso_s3_judge(&j, &response, &status);
    if (result == ISO_S3_DONE && !response.text.data) iso_string_append(&response.text, "", 0);
    const char *wrong = result == ISO_S3_DONE && status == ISO_OK ? check_body(&response, most) : NULL;
    if (wrong) {
      snprintf(j.cause, sizeof j.cause, "%s", wrong);
      result = ISO_S3_AGAIN;
    }
    if (result == ISO_S3_DONE && status == ISO_OK) {
      *data = response.text.data;
      *bytes = response.text.length;
      return *data ? ISO_OK : out_of_memory(path);
    }
    if (result != ISO_S3_AGAIN) {
      iso_http_response_fini(&response);
      return status;
    }
    ISO_TRY(again(&j, &response));
  }
}

/* ---- in parts ---- */

typedef struct part {
  char etag[96], checksum[9];
} part;

struct iso_s3_upload {
  char *path;
  char bucket[64];
  const char *key;  /* within path */
  iso_string query; /* "uploadId=..." */
  part *parts;      /* heap */
  int count, capacity;
  int64_t bytes;
  uint32_t crc; /* of all */
};

typedef struct id_reader {
  iso_string *id;
} id_reader;

static const char *take_id(void *context, const char *path, const char *text, size_t length) {
  id_reader *r = context;
  if (strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0) {
    r->id->length = 0;
    iso_string_append(r->id, text, length);
  }
  return NULL;
}

static void upload_free(iso_s3_upload **address) {
  iso_s3_upload *u = *address;
  iso_string_fini(&u->query);
  free(u->parts);
  free(u->path);
  free(u);
  *address = NULL;
}

static iso_status begin(iso_s3_upload *u) {
  iso_s3_job j = {.path = u->path,
                  .bucket = u->bucket,
                  .key = u->key,
                  .doing = "write",
                  .method = "POST",
                  .query = "uploads=",
                  .first = -1,
                  .sends = true,
                  .begins_upload = true};
  iso_http_response response = {0};
  iso_string id = {0};
  iso_s3_job_begin(&j, iso_s3_give_up_s());
  iso_status status = iso_s3_persist(&j, &response);
  if (status == ISO_OK) {
    id_reader reader = {&id};
    const char *wrong =
        iso_xml_walk(response.text.data ? response.text.data : "", response.text.length, take_id, &reader);
    if (!wrong && id.length == 0) wrong = "no UploadId";
    if (wrong)
      status = iso_fail(ISO_ERR_IO, "cannot write '%s': S3 does not say how its upload is called (%s)", u->path, wrong);
  }
  if (status == ISO_OK) {
    iso_string_printf(&u->query, "uploadId=");
    iso_s3_encode(&u->query, id.data, id.length, false);
    if (iso_string_failed(&u->query)) status = ISO_ERR_MEMORY;
  }
  iso_string_fini(&id);
  iso_http_response_fini(&response);
  return status;
}

iso_status iso_s3_upload_begin(const char *path, iso_s3_upload **out) {
  *out = NULL;
  iso_s3_upload *u = calloc(1, sizeof *u);
  if (u) u->path = strdup(path);
  if (!u || !u->path) {
    free(u);
    return out_of_memory(path);
  }
  iso_status status = iso_s3_path_split(u->path, u->bucket, &u->key);
  if (status == ISO_OK) status = begin(u);
  if (status != ISO_OK) {
    upload_free(&u);
    return status;
  }
  *out = u;
  return ISO_OK;
}

static iso_status send_part(iso_s3_upload *u, iso_s3_job *j, part *to) {
  iso_http_response response = {0};
  iso_s3_job_begin(j, iso_s3_give_up_s());
  iso_status status = iso_s3_persist(j, &response);
  if (status == ISO_OK) status = check_stored(j, &response);
  if (status == ISO_OK && !iso_s3_etag(response.etag, strlen(response.etag), to->etag))
    status = iso_fail(ISO_ERR_IO, "cannot write '%s': S3 does not say the ETag of part %d", u->path, u->count + 1);
  memcpy(to->checksum, j->checksum, sizeof to->checksum);
  iso_http_response_fini(&response);
  return status;
}

iso_status iso_s3_upload_part(iso_s3_upload *u, const void *data, size_t bytes) {
  if (u->count == u->capacity) {
    const int capacity = u->capacity ? 2 * u->capacity : 16;
    part *grown = realloc(u->parts, (size_t)capacity * sizeof *grown);
    if (!grown) return out_of_memory(u->path);
    u->parts = grown;
    u->capacity = capacity;
  }
  if (u->count == ISO_S3_MOST_PARTS)
    return iso_fail(ISO_ERR_INTERNAL, "'%s' would have more than %d parts", u->path, ISO_S3_MOST_PARTS);
  iso_string query = {0};
  iso_string_printf(&query, "partNumber=%d&%s", u->count + 1, u->query.data);
  if (iso_string_failed(&query)) return ISO_ERR_MEMORY;
  iso_s3_job j = {.path = u->path,
                  .bucket = u->bucket,
                  .key = u->key,
                  .doing = "write",
                  .method = "PUT",
                  .query = query.data,
                  .first = -1,
                  .sends = true,
                  .checksummed = true,
                  .data = data,
                  .data_bytes = bytes};
  const iso_status status = send_part(u, &j, &u->parts[u->count]);
  iso_string_fini(&query);
  if (status != ISO_OK) return status;
  u->count++;
  u->bytes += (int64_t)bytes;
  u->crc = iso_crc32c(u->crc, data, bytes);
  return ISO_OK;
}

/* 200 does not say yet that it worked: the body does. */
static iso_s3_verdict judge_completion(iso_s3_job *j, const iso_http_response *response, iso_status *status) {
  iso_s3_error error;
  error_of(response, &error);
  if (!*error.code) return ISO_S3_DONE;
  snprintf(j->cause, sizeof j->cause, "%s", error.code);
  if (strcmp(error.code, "InternalError") == 0 || strcmp(error.code, "SlowDown") == 0) return ISO_S3_AGAIN;
  *status = iso_fail(ISO_ERR_IO, "S3 refuses '%s': %s: %s", j->path, error.code, error.message);
  return ISO_S3_OVER;
}

/* `closed`: the upload itself became the object. */
static iso_status complete(iso_s3_upload *u, iso_s3_job *j, bool *taken, bool *closed) {
  bool other = false;
  iso_s3_job_begin(j, iso_s3_give_up_s());
  for (;;) {
    iso_http_response response = {0};
    iso_s3_verdict result = ISO_S3_AGAIN;
    bool over = true;
    iso_status status = iso_s3_attempt(j, &response);
    const bool answered = is_answered(status, &response), gone = answered && is_missing(&response);
    if (status != ISO_OK) {
      result = ISO_S3_OVER;
    } else if (gone || (answered && taken && response.status == 412)) {
      status = meet_taken(u->path, u->bytes, u->crc, &other, &over);
      if (status == ISO_OK && gone && (!over || (other && !taken)))
        status = iso_fail(ISO_ERR_IO, "cannot write '%s': its upload is gone; it begins anew", u->path);
      if (taken) *taken = other;
      if (status != ISO_OK || over) result = ISO_S3_OVER;
      snprintf(j->cause, sizeof j->cause, "HTTP 412, but it is not there");
    } else if (answered && response.status == 409) {
      snprintf(j->cause, sizeof j->cause, "HTTP 409: another request writes it");
    } else {
      result = iso_s3_judge(j, &response, &status);
      if (result == ISO_S3_DONE) result = judge_completion(j, &response, &status);
    }
    if (result != ISO_S3_AGAIN) {
      *closed = result == ISO_S3_DONE;
      iso_http_response_fini(&response);
      return status;
    }
    ISO_TRY(again(j, &response));
  }
}

iso_status iso_s3_upload_complete(iso_s3_upload **address, bool *taken) {
  iso_s3_upload *u = *address;
  iso_string body = {0};
  if (taken) *taken = false;
  iso_string_printf(&body, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
  for (int i = 0; i < u->count; i++)
    iso_string_printf(&body,
                      "<Part><PartNumber>%d</PartNumber><ETag>&quot;%s&quot;</ETag>"
                      "<ChecksumCRC32C>%s</ChecksumCRC32C></Part>",
                      i + 1, u->parts[i].etag, u->parts[i].checksum);
  iso_string_printf(&body, "</CompleteMultipartUpload>");
  iso_s3_job j = {.path = u->path,
                  .bucket = u->bucket,
                  .key = u->key,
                  .doing = "write",
                  .method = "POST",
                  .query = u->query.data,
                  .first = -1,
                  .sends = true,
                  .only_new = taken != NULL,
                  .slow_answer = true,
                  .data = body.data,
                  .data_bytes = body.length};
  bool closed = false;
  const iso_status status = iso_string_failed(&body) ? ISO_ERR_MEMORY : complete(u, &j, taken, &closed);
  iso_string_fini(&body);
  if (closed)
    upload_free(address);
  else
    iso_s3_upload_abort(address);
  return status;
}

void iso_s3_upload_abort(iso_s3_upload **address) {
  if (!*address) return;
  iso_s3_upload *u = *address;
  if (!iso_http_stopping()) (void)!remove_it(u->path, u->bucket, u->key, u->query.data);
  upload_free(address);
}

/* ---- uploads that nobody will finish ---- */

typedef struct found {
  const char *prefix; /* of keys */
  iso_string key, id; /* of the upload that is being read */
  iso_string list;    /* KEY NUL QUERY NUL ... */
  int count;
} found;

static const char *take_upload(void *context, const char *path, const char *text, size_t length) {
  found *f = context;
  iso_string *to = strcmp(path, "ListMultipartUploadsResult/Upload/Key") == 0        ? &f->key
                   : strcmp(path, "ListMultipartUploadsResult/Upload/UploadId") == 0 ? &f->id
                                                                                     : NULL;
  if (to) {
    to->length = 0;
    iso_string_append(to, text, length);
  }
  if (strcmp(path, "ListMultipartUploadsResult/Upload") != 0) return NULL;
  if (!f->key.length || !f->id.length) return "an upload without Key or UploadId";
  if (strncmp(f->key.data, f->prefix, strlen(f->prefix)) == 0) {
    iso_string_append(&f->list, f->key.data, f->key.length + 1);
    iso_string_printf(&f->list, "uploadId=");
    iso_s3_encode(&f->list, f->id.data, f->id.length, false);
    iso_string_append(&f->list, "", 1);
    f->count++;
  }
  f->key.length = f->id.length = 0;
  return iso_string_failed(&f->list) ? "no memory for it" : NULL;
}

static iso_status find_uploads(const char *path, const char *bucket, found *f) {
  iso_string query = {0};
  iso_http_response response = {0};
  iso_string_printf(&query, "prefix=");
  iso_s3_encode(&query, f->prefix, strlen(f->prefix), false);
  iso_string_printf(&query, "&uploads=");
  if (iso_string_failed(&query)) return ISO_ERR_MEMORY;
  iso_s3_job j = {.path = path,
                  .bucket = bucket,
                  .key = "",
                  .doing = "list the uploads below",
                  .method = "GET",
                  .query = query.data,
                  .first = -1};
  iso_s3_job_begin(&j, iso_s3_give_up_s());
  iso_status status = iso_s3_persist(&j, &response);
  const char *wrong = NULL;
  if (status == ISO_OK)
    wrong = iso_xml_walk(response.text.data ? response.text.data : "", response.text.length, take_upload, f);
  if (wrong) status = iso_fail(ISO_ERR_IO, "cannot list the uploads below '%s': %s", path, wrong);
  iso_http_response_fini(&response);
  iso_string_fini(&query);
  return status;
}

iso_status iso_s3_uploads_abort(const char *path, int64_t *count) {
  char bucket[64];
  const char *key;
  *count = 0;
  ISO_TRY(iso_s3_path_split(path, bucket, &key));
  iso_status status = ISO_OK;
  bool more = true;
  for (int round = 0; round < ABORT_ROUNDS && more && status == ISO_OK; round++) {
    found f = {.prefix = key};
    status = find_uploads(path, bucket, &f);
    const char *at = f.list.data;
    for (int i = 0; i < f.count && status == ISO_OK; i++) {
      const char *query = at + strlen(at) + 1;
      status = remove_it(path, bucket, at, query);
      at = query + strlen(query) + 1;
      ++*count;
    }
    more = f.count > 0;
    iso_string_fini(&f.key);
    iso_string_fini(&f.id);
    iso_string_fini(&f.list);
  }
  return status;
}
