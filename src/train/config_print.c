/* SPDX-License-Identifier: Apache-2.0
 *
 * A config as text: resolved YAML that reads back the same, the help page, the digest, and what differs between two
 * configs.
 */
#include <string.h>

#include "train/train.h"

/* Closes and opens groups so that `path` can be printed at its place; returns its depth. */
static int open_groups(const char *previous, const char *path, iso_string *out) {
  int depth = 0;
  size_t begin = 0;
  bool same = previous != NULL;
  for (const char *dot; (dot = strchr(path + begin, '.')); begin = (size_t)(dot - path) + 1) {
    const size_t length = (size_t)(dot - path);
    if (!same || strncmp(previous, path, length + 1) != 0) {
      same = false;
      iso_string_printf(out, "%*s%.*s:\n", depth * 2, "", (int)(length - begin), path + begin);
    }
    depth++;
  }
  return depth;
}

static const char *key_word(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot ? dot + 1 : path;
}

static void print_sources(const iso_config *config, iso_string *out) {
  iso_string_printf(out, "  sources:%s\n", config->data.source_count ? "" : " []");
  for (int s = 0; s < config->data.source_count; s++) {
    for (size_t i = 0; i < iso_source_key_count; i++) {
      iso_string_printf(out, "    %s %s: ", i == 0 ? "-" : " ", iso_source_keys[i].path);
      iso_key_print(&iso_source_keys[i], &config->data.sources[s], out);
      iso_string_printf(out, "\n");
    }
  }
}

/* Of the machines, not of the run: the record of each start has the order that came of it (ranks_order.c). So versions
 * that do not know the key read every run. */
#define OF_MACHINES "parallel.topology"

void iso_config_print(const iso_config *config, iso_string *out) {
  const char *previous = NULL;
  for (size_t i = 0; i < iso_key_count; i++) {
    const iso_key *key = &iso_keys[i];
    if (strcmp(key->path, OF_MACHINES) == 0) continue;
    const bool first_of_data = strncmp(key->path, "data.", 5) == 0 && (!previous || strncmp(previous, "data.", 5) != 0);
    if (first_of_data) {
      iso_string_printf(out, "data:\n");
      print_sources(config, out);
      previous = "data.sources";
    }
    const int depth = open_groups(previous, key->path, out);
    iso_string_printf(out, "%*s%s: ", depth * 2, "", key_word(key->path));
    if (strcmp(key->path, "model.config") == 0 && config->model.inline_json) {
      iso_string_printf(out, "%s", config->model.inline_json);
    } else {
      iso_key_print(key, config, out);
    }
    iso_string_printf(out, "\n");
    previous = key->path;
  }
}

void iso_config_help(FILE *out) {
  fprintf(out, "Keys of a run config, with defaults. On the command line: key=value, with dots for nesting.\n"
               "Keys marked * decide the run's bits: changing one on a resume needs --accept.\n\n");
  for (size_t i = 0; i < iso_key_count; i++) {
    const iso_key *key = &iso_keys[i];
    if (strcmp(key->path, "data.validation.every") == 0)
      for (size_t k = 0; k < iso_source_key_count; k++)
        fprintf(out, "%c data.sources.N.%-14s %-20s %s\n", iso_source_keys[k].decides_bits ? '*' : ' ',
                iso_source_keys[k].path, iso_source_keys[k].fallback[0] ? iso_source_keys[k].fallback : "\"\"",
                iso_source_keys[k].help);
    fprintf(out, "%c %-29s %-20s %s", key->decides_bits ? '*' : ' ', key->path,
            key->fallback[0] ? key->fallback : "\"\"", key->help);
    if (key->type == ISO_KEY_CHOICE) fprintf(out, " (%s)", key->choices);
    fprintf(out, "\n");
  }
}

/* Of its words those that decide bits. */
static void print_fusion(const iso_config *config, iso_string *out) {
  const iso_fusion_switches switches = iso_config_fusion(config);
  iso_fusion_switches_bits(&switches, out);
}

/* A limit that once counted as deciding bits: digests keep its default, so that older runs resume. */
#define ONCE_DECIDING "data.max_bad_documents"

/* "key: value" of every key that decides bits. */
static void print_deciding(const iso_config *config, iso_string *out) {
  for (size_t i = 0; i < iso_key_count; i++) {
    if (strcmp(iso_keys[i].path, ONCE_DECIDING) == 0)
      iso_string_printf(out, "%s: %s\n", ONCE_DECIDING, iso_keys[i].fallback);
    if (!iso_keys[i].decides_bits) continue;
    iso_string_printf(out, "%s: ", iso_keys[i].path);
    if (iso_keys[i].type == ISO_KEY_FUSION) {
      print_fusion(config, out);
    } else {
      iso_key_print(&iso_keys[i], config, out);
    }
    iso_string_printf(out, "\n");
  }
  for (int s = 0; s < config->data.source_count; s++) {
    for (size_t i = 0; i < iso_source_key_count; i++) {
      if (!iso_source_keys[i].decides_bits) continue;
      iso_string_printf(out, "data.sources.%d.%s: ", s, iso_source_keys[i].path);
      iso_key_print(&iso_source_keys[i], &config->data.sources[s], out);
      iso_string_printf(out, "\n");
    }
  }
}

void iso_config_digest(const iso_config *config, const char *extra, char hex[65]) {
  iso_string text = {0};
  print_deciding(config, &text);
  iso_string_printf(&text, "%s\n", extra);
  iso_sha256 *hash = iso_sha256_create();
  iso_sha256_update(hash, text.data, text.length);
  iso_sha256_finish(&hash, hex);
  iso_string_fini(&text);
}

static const char *next_line(const char *text, size_t *length) {
  *length = strcspn(text, "\n");
  return text[*length] ? text + *length + 1 : text + *length;
}

/* The line of `text` that begins with the same key, or NULL. */
static const char *find_line(const char *text, const char *key, size_t key_length, size_t *length) {
  while (*text) {
    const char *next = next_line(text, length);
    if (*length > key_length && strncmp(text, key, key_length) == 0 && text[key_length] == ':') return text;
    text = next;
  }
  return NULL;
}

int iso_config_difference(const iso_config *before, const iso_config *now, iso_string *out) {
  iso_string old_text = {0}, new_text = {0};
  print_deciding(before, &old_text);
  print_deciding(now, &new_text);
  int differences = 0;
  for (const char *line = new_text.data ? new_text.data : ""; *line;) {
    size_t length, old_length;
    const char *next = next_line(line, &length);
    const size_t key_length = (size_t)(strchr(line, ':') - line);
    const char *old_line = find_line(old_text.data ? old_text.data : "", line, key_length, &old_length);
    if (key_length == strlen("fusion") && strncmp(line, "fusion", key_length) == 0) {
      /* compared by the bits that it gives, told in the user's words */
      if (!old_line || old_length != length || strncmp(line, old_line, length) != 0)
        iso_string_printf(out, "%sfusion: %s -> %s", differences++ ? "; " : "", before->fusion, now->fusion);
    } else if (!old_line || old_length != length || strncmp(line, old_line, length) != 0) {
      const int old_value = old_line ? (int)(old_length - key_length - 2) : 4;
      iso_string_printf(out, "%s%.*s: %.*s -> %.*s", differences ? "; " : "", (int)key_length, line, old_value,
                        old_line ? old_line + key_length + 2 : "none", (int)(length - key_length - 2),
                        line + key_length + 2);
      differences++;
    }
    line = next;
  }
  if (before->data.source_count > now->data.source_count) {
    iso_string_printf(out, "%sdata.sources: %d -> %d entries", differences ? "; " : "", before->data.source_count,
                      now->data.source_count);
    differences++;
  }
  iso_string_fini(&old_text);
  iso_string_fini(&new_text);
  return differences;
}
