/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as a line of JSON. What the scanner calls good, iso_json_parse calls good too, with the same
 * string; what it calls bad, it calls bad at a byte of the line. Where the two may differ (NUL, depth, bytes that are
 * no UTF-8) is left out.
 *
 *   fuzz_jsonl corpus
 */
#include "data/data.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds) {
  if (!holds) abort();
}

static int depth_of(const char *line, size_t size) {
  int depth = 0, deepest = 0;
  for (size_t i = 0; i < size; i++) {
    depth += (line[i] == '{' || line[i] == '[') - (line[i] == '}' || line[i] == ']');
    if (depth > deepest) deepest = depth;
  }
  return deepest;
}

/* Characters of the longest number; cJSON reads no more than 63 of one. */
static size_t longest_number(const char *line, size_t size) {
  size_t longest = 0, here = 0;
  for (size_t i = 0; i < size; i++) {
    here = line[i] && strchr("0123456789+-.eE", line[i]) ? here + 1 : 0;
    if (here > longest) longest = here;
  }
  return longest;
}

static bool comparable(const char *line, size_t size) {
  return iso_utf8_valid_prefix(line, size) == size && !memchr(line, 0, size) && !memchr(line, '\n', size) &&
         !memmem(line, size, "\\u0000", 6) && depth_of(line, size) < 50 && longest_number(line, size) < 60 &&
         (size < 3 || memcmp(line, "\xEF\xBB\xBF", 3) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static iso_jsonl_scratch scratch;
  char *line = malloc(size ? size : 1); /* of exactly its size, so that one byte too far is seen */
  iso_jsonl_line found;
  iso_string text = {0};
  iso_log_quiet(true);
  if (size) memcpy(line, data, size);
  check(iso_jsonl_scan(line, size, "text", &scratch, &found) == ISO_OK);
  if (found.good) {
    check(found.begin <= size && found.length <= size - found.begin);
    check(iso_jsonl_unescape(line + found.begin, found.length, &text));
    check(iso_utf8_valid_prefix(text.data, text.length) == text.length);
  } else {
    check(found.at <= size && found.cause[0]);
  }
  if (comparable(line, size)) {
    iso_json *json = NULL;
    bool good = iso_json_parse(line, size, "fuzz", &json) == ISO_OK;
    cJSON *field = good && cJSON_IsObject(json) ? cJSON_GetObjectItemCaseSensitive(json, "text") : NULL;
    check(found.good == (cJSON_IsString(field) != 0));
    check(!found.good || strcmp(field->valuestring, text.data) == 0);
    iso_json_destroy(&json);
  }
  check(iso_jsonl_scan(line, size, "a.b", &scratch, &found) == ISO_OK);
  iso_string_fini(&text);
  free(line);
  return 0;
}
