/* SPDX-License-Identifier: Apache-2.0
 *
 * The config's key table: one row a key, for reading, printing, help, digest and difference alike.
 */
#ifndef ISO_TRAIN_KEYS_H
#define ISO_TRAIN_KEYS_H

#include "train/train.h"

typedef enum iso_key_type {
  ISO_KEY_STRING,
  ISO_KEY_PATH,   /* of an input: resolved; its content, not its name, decides bits */
  ISO_KEY_CHOICE, /* one of the words in `choices` */
  ISO_KEY_INT,
  ISO_KEY_AUTO, /* a whole number or `auto` (-1) */
  ISO_KEY_REAL,
  ISO_KEY_BOOL
} iso_key_type;

typedef struct iso_key {
  const char *path; /* with dots */
  iso_key_type type;
  size_t offset; /* in iso_config, or in iso_source_config */
  const char *fallback;
  const char *choices; /* CHOICE: words separated by spaces; numbers: "low high" */
  const char *help;    /* unit and meaning */
  bool decides_bits;
} iso_key;

extern const iso_key iso_keys[];
extern const size_t iso_key_count;
extern const iso_key iso_source_keys[]; /* of an entry of data.sources */
extern const size_t iso_source_key_count;

/* Sets the field from its text. `where` names the place for errors. Strings go to the arena. */
iso_status iso_key_set(const iso_key *key, void *base, iso_arena *arena, const char *text,
                       const char *where) ISO_MUST_CHECK;
/* The field as YAML text. */
void iso_key_print(const iso_key *key, const void *base, iso_string *out);
/* Key of the table nearest to a misspelt one. */
const char *iso_key_nearest(const char *path);

#endif
