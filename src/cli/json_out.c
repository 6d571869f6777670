/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON for --json: members are appended in order. Whether a comma is due follows from the last character written.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "cli/cli.h"

static void begin(iso_string *out, const char *key) {
  const char last = out->length ? out->data[out->length - 1] : 0;
  if (last && last != '{' && last != '[') iso_string_printf(out, ", ");
  if (!key) return;
  iso_json_quote(out, key, strlen(key));
  iso_string_printf(out, ": ");
}

void iso_json_open(iso_string *out, const char *key, char bracket) {
  begin(out, key);
  iso_string_append(out, &bracket, 1);
}

void iso_json_shut(iso_string *out, char bracket) {
  iso_string_append(out, &bracket, 1);
}

void iso_json_put_text(iso_string *out, const char *key, const char *text) {
  begin(out, key);
  iso_json_quote(out, text, strlen(text));
}

void iso_json_put_int(iso_string *out, const char *key, int64_t value) {
  begin(out, key);
  iso_string_printf(out, "%lld", (long long)value);
}

void iso_json_put_real(iso_string *out, const char *key, double value) {
  begin(out, key);
  iso_json_number(out, value, 12);
}

void iso_json_put_bool(iso_string *out, const char *key, bool value) {
  begin(out, key);
  iso_string_printf(out, value ? "true" : "false");
}

iso_status iso_text_print(iso_string *out) {
  iso_status status = ISO_OK;
  if (iso_string_failed(out)) {
    status = iso_fail(ISO_ERR_MEMORY, "no memory for the output");
  } else if (out->length && fwrite(out->data, 1, out->length, stdout) != out->length) {
    status = iso_fail(ISO_ERR_IO, "cannot write standard output: %s", strerror(errno));
  }
  iso_string_fini(out);
  return status;
}

iso_status iso_table_print(iso_string *out) {
  if (out->data) iso_text_tame(out->data, out->length);
  return iso_text_print(out);
}

iso_status iso_json_print(iso_string *out) {
  iso_string_printf(out, "\n");
  return iso_text_print(out);
}
