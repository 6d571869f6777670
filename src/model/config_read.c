/* SPDX-License-Identifier: Apache-2.0
 *
 * config_read.c: typed keys of a config.json, each with its range, and the one line that refuses a value.
 *
 * Invariants
 *  1. A value outside its range is FORMAT (nobody could run it); a value that another program can run and this build
 *     cannot is UNSUPPORTED. Both lines name the source, the key and the value.
 *  2. An absent key and a null are told apart, since transformers does ("sliding_window": null is not the default).
 */
#include "model/model.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>

bool iso_config_has(const iso_config_reader *reader, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(reader->json, key) != NULL;
}

iso_status iso_config_int(const iso_config_reader *reader, const char *key, int64_t absent, int64_t null,
                          int64_t minimum, int64_t maximum, int64_t *out) {
  if (iso_json_get(reader->json, key) == NULL) {
    *out = iso_config_has(reader, key) ? null : absent;
    return ISO_OK;
  }
  ISO_TRY(iso_json_int(reader->json, reader->where, key, 0, out));
  if (*out < minimum || *out > maximum)
    return iso_fail(ISO_ERR_FORMAT, "%s: %s is %" PRId64 ", but must be from %" PRId64 " to %" PRId64, reader->where,
                    key, *out, minimum, maximum);
  return ISO_OK;
}

iso_status iso_config_required(const iso_config_reader *reader, const char *key, int64_t maximum, int64_t *out) {
  if (iso_json_get(reader->json, key) == NULL)
    return iso_fail(ISO_ERR_FORMAT, "%s: %s is missing; %s needs it", reader->where, key, reader->architecture);
  return iso_config_int(reader, key, 0, 0, 1, maximum, out);
}

iso_status iso_config_double(const iso_config_reader *reader, const char *key, double fallback, double minimum,
                             double maximum, double *out) {
  ISO_TRY(iso_json_double(reader->json, reader->where, key, fallback, out));
  if (!(*out >= minimum && *out <= maximum))
    return iso_fail(ISO_ERR_FORMAT, "%s: %s is %g, but must be from %g to %g", reader->where, key, *out, minimum,
                    maximum);
  return ISO_OK;
}

iso_status iso_config_bool(const iso_config_reader *reader, const char *key, bool fallback, bool *out) {
  return iso_json_bool(reader->json, reader->where, key, fallback, out);
}

iso_status iso_config_refuse(const iso_config_reader *reader, const char *key, const iso_json *value,
                             const char *what_is) {
  enum { SHOWN = 60 };
  char *text = cJSON_PrintUnformatted(value);
  iso_status status = iso_fail(ISO_ERR_UNSUPPORTED, "%s: %s with %s %.*s is not supported: %s", reader->where,
                               reader->architecture, key, SHOWN, text ? text : "(too large to show)", what_is);
  free(text);
  return status;
}

iso_status iso_config_dropout(const iso_config_reader *reader, const char *const *keys, iso_model_config *config) {
  for (; *keys; keys++) {
    double value;
    ISO_TRY(iso_config_double(reader, *keys, 0, 0, 1, &value));
    if (value > config->dropout) config->dropout = value;
  }
  return ISO_OK;
}
