/* SPDX-License-Identifier: Apache-2.0
 *
 * rope.c: rotary position embedding (Su et al. 2021): its keys, and the tables of cosines and sines.
 *
 * transformers computes inverse frequencies and angles in float32. An angle of thousands of radians then carries an
 * error far above float32's own, and a model is trained with those very angles; so the tables here take the same
 * roundings: each product is rounded to float32, and only the cosine and sine of the rounded angle are exact.
 *
 * Keys. transformers 4: `rope_theta` beside `rope_scaling` {rope_type or type, factor, ...}. transformers 5:
 * `rope_parameters` {rope_theta, rope_type, ...}. When both are there they must agree.
 * The llama3 rule is that of Llama 3.1's reference: long wavelengths divided by the factor, short ones kept, linear in
 * between.
 */
#include "model/model.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static iso_status check_keys(const iso_config_reader *reader, const char *object, iso_rope_kind kind) {
  static const char *const known[] = {"rope_theta", "rope_type", "type", "factor", "partial_rotary_factor"};
  static const char *const llama3[] = {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
  const cJSON *item;
  cJSON_ArrayForEach(item, reader->json) {
    bool read = cJSON_IsNull(item);
    for (size_t i = 0; i < ISO_COUNT(known); i++) read |= strcmp(item->string, known[i]) == 0;
    for (size_t i = 0; i < ISO_COUNT(llama3); i++)
      read |= strcmp(item->string, llama3[i]) == 0 &&
              (kind == ISO_ROPE_LLAMA3 || i == 2 /* repeats max_position_embeddings in many files */);
    if (read) continue;
    char key[128];
    snprintf(key, sizeof key, "%s.%s", object, item->string);
    return iso_config_refuse(reader, key, item, "this build does not know the key");
  }
  return ISO_OK;
}

static iso_status parse_kind(const iso_config_reader *reader, const char *object, iso_rope_kind *kind) {
  const char *type, *old;
  ISO_TRY(iso_json_string(reader->json, reader->where, "type", "default", &old));
  ISO_TRY(iso_json_string(reader->json, reader->where, "rope_type", old, &type));
  if (iso_json_get(reader->json, "type") && strcmp(type, old) != 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: %s has rope_type \"%s\" and type \"%s\"; keep one", reader->where, object,
                    type, old);
  static const char *const kinds[] = {
      [ISO_ROPE_DEFAULT] = "default", [ISO_ROPE_LINEAR] = "linear", [ISO_ROPE_LLAMA3] = "llama3"};
  for (size_t i = 0; i < ISO_COUNT(kinds); i++)
    if (strcmp(type, kinds[i]) == 0) {
      *kind = (iso_rope_kind)i;
      return ISO_OK;
    }
  char key[64];
  snprintf(key, sizeof key, "%s.rope_type", object);
  const iso_json *value = iso_json_get(reader->json, "rope_type");
  return iso_config_refuse(reader, key, value ? value : iso_json_get(reader->json, "type"),
                           "default, linear and llama3 are");
}

/* The object under `object`; `outer` reads the whole config. */
static iso_status parse_object(const iso_config_reader *outer, const char *object, iso_model_config *config) {
  const iso_json *json = iso_json_get(outer->json, object);
  if (!cJSON_IsObject(json)) return iso_fail(ISO_ERR_FORMAT, "%s: %s must be an object", outer->where, object);
  const iso_config_reader reader = {json, outer->where, outer->architecture};
  ISO_TRY(iso_config_double(&reader, "rope_theta", config->rope_theta, 1, 1e15, &config->rope_theta));
  const cJSON *item;
  cJSON_ArrayForEach(item, json) {
    if (!cJSON_IsObject(item)) continue;
    char key[128];
    snprintf(key, sizeof key, "%s.%s", object, item->string);
    return iso_config_refuse(&reader, key, item, "rotary embeddings that differ by layer are not");
  }
  ISO_TRY(parse_kind(&reader, object, &config->rope_kind));
  ISO_TRY(check_keys(&reader, object, config->rope_kind));
  double part;
  ISO_TRY(iso_config_double(&reader, "partial_rotary_factor", 1, 0, 1, &part));
  if (part != 1)
    return iso_config_refuse(&reader, "partial_rotary_factor", iso_json_get(json, "partial_rotary_factor"),
                             "only 1 is");
  if (config->rope_kind == ISO_ROPE_DEFAULT) return ISO_OK;
  if (!iso_json_get(json, "factor")) return iso_fail(ISO_ERR_FORMAT, "%s: %s needs a factor", outer->where, object);
  ISO_TRY(iso_config_double(&reader, "factor", 1, 1e-3, 1e6, &config->rope_factor));
  if (config->rope_kind == ISO_ROPE_LINEAR) return ISO_OK;

  static const char *const needed[] = {"low_freq_factor", "high_freq_factor"};
  for (size_t i = 0; i < ISO_COUNT(needed); i++)
    if (!iso_json_get(json, needed[i]))
      return iso_fail(ISO_ERR_FORMAT, "%s: %s of type llama3 needs %s", outer->where, object, needed[i]);
  ISO_TRY(iso_config_double(&reader, "low_freq_factor", 1, 1e-6, 1e6, &config->rope_low_freq));
  ISO_TRY(iso_config_double(&reader, "high_freq_factor", 1, 1e-6, 1e6, &config->rope_high_freq));
  if (config->rope_high_freq <= config->rope_low_freq)
    return iso_fail(ISO_ERR_FORMAT, "%s: %s: high_freq_factor %g must be above low_freq_factor %g", outer->where,
                    object, config->rope_high_freq, config->rope_low_freq);
  return iso_config_int(&reader, "original_max_position_embeddings", config->positions, config->positions, 1, INT32_MAX,
                        &config->rope_original_positions);
}

static bool same_rope(const iso_model_config *a, const iso_model_config *b) {
  return a->rope_kind == b->rope_kind && a->rope_theta == b->rope_theta && a->rope_factor == b->rope_factor &&
         a->rope_low_freq == b->rope_low_freq && a->rope_high_freq == b->rope_high_freq &&
         a->rope_original_positions == b->rope_original_positions;
}

iso_status iso_rope_parse(const iso_config_reader *reader, iso_model_config *config) {
  ISO_TRY(iso_config_double(reader, "rope_theta", 10000, 1, 1e15, &config->rope_theta));
  iso_model_config other = *config;
  bool old = iso_json_get(reader->json, "rope_scaling") != NULL;
  bool new = iso_json_get(reader->json, "rope_parameters") != NULL;
  if (new) ISO_TRY(parse_object(reader, "rope_parameters", config));
  if (old) ISO_TRY(parse_object(reader, "rope_scaling", new ? &other : config));
  bool theta_only = new && !old &&iso_json_get(reader->json, "rope_theta") != NULL;
  if ((new &&old && !same_rope(config, &other)) || (theta_only && config->rope_theta != other.rope_theta))
    return iso_fail(ISO_ERR_FORMAT, "%s: rope_parameters contradicts %s; keep one", reader->where,
                    theta_only ? "rope_theta" : "rope_scaling and rope_theta");
  return ISO_OK;
}

void iso_rope_frequencies(const iso_model_config *config, float *frequencies) {
  const int64_t half = config->head_dim / 2;
  const float factor = (float)config->rope_factor;
  for (int64_t i = 0; i < half; i++) {
    float exponent = (float)(2 * i) / (float)config->head_dim;
    float frequency = 1.0f / (float)iso_pow(config->rope_theta, exponent);
    if (config->rope_kind == ISO_ROPE_LINEAR) frequency /= factor;
    if (config->rope_kind == ISO_ROPE_LLAMA3) {
      const double original = (double)config->rope_original_positions;
      const float low = (float)config->rope_low_freq;
      const float wavelength = (float)(2 * PI) / frequency;
      const float longest = (float)(original / config->rope_low_freq);
      const float shortest = (float)(original / config->rope_high_freq);
      if (wavelength > longest) {
        frequency /= factor;
      } else if (!(wavelength < shortest)) {
        float share = ((float)original / wavelength - low) / (float)(config->rope_high_freq - config->rope_low_freq);
        frequency = (1 - share) * frequency / factor + share * frequency;
      }
    }
    frequencies[i] = frequency;
  }
}

void iso_rope_tables(const iso_model_config *config, int64_t rows, float *cos_table, float *sin_table) {
  const int64_t half = config->head_dim / 2;
  float *frequencies = sin_table; /* row 0 is written last, so its place can hold them until then */
  iso_rope_frequencies(config, frequencies);
  for (int64_t row = rows - 1; row >= 0; row--)
    for (int64_t i = 0; i < half; i++) {
      float angle = (float)row * frequencies[i];
      cos_table[row * half + i] = (float)iso_cos(angle);
      sin_table[row * half + i] = (float)iso_sin(angle);
    }
}
