/* SPDX-License-Identifier: Apache-2.0
 *
 * switches: words that say which rows of the fusion table apply. First a mode, if any:
 *
 *   auto  rows with the bits of their unfused form may stay unfused where that was measured to be faster; the others
 * apply on    every row applies, nothing is measured off   no row applies
 *
 * then -name or +name for single rows, which are not measured. Spaces or commas separate words.
 *
 * Invariants
 *  1. What is measured never decides bits: `measure` holds rows of unfused bits only.
 *  2. Two sets of words with equal iso_fusion_switches_bits give the same run, bit for bit.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

#define SEPARATORS " \t,"

bool iso_fusion_keeps_bits(int index) {
  const iso_fusion_info *info = iso_fusion_get(index);
  return info != NULL && strcmp(info->bits, ISO_FUSION_SAME_BITS) == 0;
}

static iso_status unknown(const char *where, const char *word, bool first) {
  const char *names[ISO_FUSION_COUNT + 3] = {"auto", "on", "off"};
  size_t count = first && word[0] != '-' && word[0] != '+' ? 3 : 0;
  for (int row = 0; row < ISO_FUSION_COUNT; row++) names[count++] = iso_fusion_get(row)->name;
  const bool sign = word[0] == '-' || word[0] == '+';
  return iso_fail(ISO_ERR_CONFIG,
                  "%s: \"%s\" is no %s; the nearest is \"%s\" (a mode auto, on or off, then -name or +name of `isotach "
                  "inspect fusion`)",
                  where, word,
                  sign    ? "fusion"
                  : first ? "mode"
                          : "switch of the form -name or +name",
                  iso_nearest(word + sign, names, count));
}

static iso_status read_switch(const char *where, const char *word, unsigned *named, iso_fusion_switches *out) {
  for (int row = 0; iso_fusion_get(row) != NULL; row++) {
    if (strcmp(iso_fusion_get(row)->name, word + 1) != 0) continue;
    if (row >= ISO_FUSION_COUNT)
      return iso_fail(ISO_ERR_CONFIG, "%s: \"%s\": that form is built in and has no switch", where, word);
    const unsigned bit = 1u << row;
    if ((*named & bit) != 0) return iso_fail(ISO_ERR_CONFIG, "%s: \"%s\" is named twice", where, word + 1);
    *named |= bit;
    out->off = word[0] == '-' ? out->off | bit : out->off & ~bit;
    return ISO_OK;
  }
  return unknown(where, word, false);
}

static iso_status read_word(const char *where, const char *word, bool first, unsigned *named,
                            iso_fusion_switches *out) {
  if (word[0] == '-' || word[0] == '+') return read_switch(where, word, named, out);
  const bool on = strcmp(word, "on") == 0, off = strcmp(word, "off") == 0;
  if (!first || (!on && !off && strcmp(word, "auto") != 0)) return unknown(where, word, first);
  if (off) out->off = ISO_FUSION_ALL;
  if (on || off) out->measure = 0;
  return ISO_OK;
}

iso_status iso_fusion_switches_read(const char *words, const char *where, iso_fusion_switches *out) {
  unsigned named = 0;
  bool first = true;
  *out = (iso_fusion_switches){0};
  for (int row = 0; row < ISO_FUSION_COUNT; row++) {
    if (iso_fusion_keeps_bits(row)) out->measure |= 1u << row;
  }
  for (const char *at = words + strspn(words, SEPARATORS); *at != '\0'; at += strspn(at, SEPARATORS)) {
    char word[64];
    const size_t length = strcspn(at, SEPARATORS);
    snprintf(word, sizeof word, "%.*s", (int)(length < 1000 ? length : 1000), at);
    ISO_TRY(read_word(where, word, first, &named, out));
    first = false;
    at += length;
  }
  out->measure &= ~named;
  if (first) return iso_fail(ISO_ERR_CONFIG, "%s: is empty; the modes are auto, on and off", where);
  return ISO_OK;
}

void iso_fusion_switches_bits(const iso_fusion_switches *switches, iso_string *out) {
  unsigned deciding = ISO_FUSION_ALL;
  for (int row = 0; row < ISO_FUSION_COUNT; row++) {
    if (iso_fusion_keeps_bits(row)) deciding &= ~(1u << row);
  }
  const unsigned off = switches->off & deciding;
  iso_string_printf(out, off != 0 && off == deciding ? "off" : "auto");
  for (int row = 0; row < ISO_FUSION_COUNT && off != deciding; row++) {
    if ((off >> row & 1) != 0) iso_string_printf(out, " -%s", iso_fusion_get(row)->name);
  }
}
