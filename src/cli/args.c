/* SPDX-License-Identifier: Apache-2.0
 *
 * Flags and words of a verb. A verb states its flags in a table; the same table answers --help.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

bool iso_parse_int(const char *text, int64_t *out) {
  char *end;
  const char *digits = text + (*text == '-' || *text == '+');
  if (*digits < '0' || *digits > '9') return false;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (*end || errno) return false;
  *out = value;
  return true;
}

static bool parse_real(const char *text, double *out) {
  char *end;
  if (!*text || strspn(text, "+-.0123456789eE") != strlen(text)) return false;
  *out = strtod(text, &end);
  return !*end && isfinite(*out);
}

static iso_status set_flag(const iso_args *args, const iso_flag *flag, const char *text) {
  const char *verb = args->verb->name;
  int64_t whole = 0;
  double real = 0;
  switch (flag->kind) {
  case ISO_FLAG_BOOL:
    *(bool *)flag->value = true;
    return ISO_OK;
  case ISO_FLAG_TEXT:
    *(const char **)flag->value = text;
    return ISO_OK;
  case ISO_FLAG_DTYPE:
    if (strcmp(text, "float32") != 0 && strcmp(text, "bfloat16") != 0)
      return iso_fail(ISO_ERR_USAGE, "%s: --%s must be float32 or bfloat16, not \"%s\"", verb, flag->name, text);
    *(iso_dtype *)flag->value = text[0] == 'f' ? ISO_F32 : ISO_BF16;
    return ISO_OK;
  case ISO_FLAG_INT:
    if (!iso_parse_int(text, &whole))
      return iso_fail(ISO_ERR_USAGE, "%s: --%s must be a whole number, not \"%s\"", verb, flag->name, text);
    real = (double)whole;
    break;
  case ISO_FLAG_REAL:
    if (!parse_real(text, &real))
      return iso_fail(ISO_ERR_USAGE, "%s: --%s must be a number, not \"%s\"", verb, flag->name, text);
    break;
  }
  if (flag->maximum > flag->minimum && (real < flag->minimum || real > flag->maximum))
    return iso_fail(ISO_ERR_USAGE, "%s: --%s must be from %.15g to %.15g, not %s", verb, flag->name, flag->minimum,
                    flag->maximum, text);
  if (flag->kind == ISO_FLAG_INT) {
    *(int64_t *)flag->value = whole;
  } else {
    *(double *)flag->value = real;
  }
  return ISO_OK;
}

static iso_status unknown_flag(const iso_args *args, const iso_flag *flags, size_t flag_count, const char *name,
                               size_t length) {
  const char *names[33] = {"help"};
  const size_t known = flag_count < 32 ? flag_count : 32;
  for (size_t i = 0; i < known; i++) names[i + 1] = flags[i].name;
  char word[64];
  snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), name);
  return iso_fail(ISO_ERR_USAGE, "%s: unknown flag --%s; the nearest is --%s", args->verb->name, word,
                  iso_nearest(word, names, known + 1));
}

/* The flag at argv[*at]; moves *at past the value it takes. */
static iso_status read_flag(iso_args *args, const iso_flag *flags, size_t flag_count, int *at) {
  const char *name = args->argv[*at] + 2, *equals = strchr(name, '=');
  const size_t length = equals ? (size_t)(equals - name) : strlen(name);
  const iso_flag *flag = NULL;
  for (size_t i = 0; i < flag_count && !flag; i++)
    if (strlen(flags[i].name) == length && strncmp(flags[i].name, name, length) == 0) flag = &flags[i];
  if (!flag) return unknown_flag(args, flags, flag_count, name, length);
  if (flag->kind == ISO_FLAG_BOOL) {
    if (equals) return iso_fail(ISO_ERR_USAGE, "%s: --%s takes no value", args->verb->name, flag->name);
    return set_flag(args, flag, NULL);
  }
  if (equals) return set_flag(args, flag, equals + 1);
  if (*at + 1 >= args->argc) return iso_fail(ISO_ERR_USAGE, "%s: --%s needs a value", args->verb->name, flag->name);
  return set_flag(args, flag, args->argv[++*at]);
}

static void print_help(const iso_args *args, const iso_flag *flags, size_t flag_count) {
  static const char *const values[] = {"", " TEXT", " N", " X", " float32|bfloat16"};
  printf("usage: isotach %s %s\n\n%s\n", args->verb->name, args->verb->synopsis, args->verb->help);
  for (size_t i = 0; i < flag_count; i++) {
    char left[80];
    snprintf(left, sizeof left, "--%s%s", flags[i].name, values[flags[i].kind]);
    printf("%s  %-26s %s\n", i ? "" : "\n", left, flags[i].help);
  }
}

iso_status iso_args_parse(iso_args *args, const iso_flag *flags, size_t flag_count, int least, int most) {
  int words = 0;
  bool ended = false;
  for (int i = 0; i < args->argc; i++) {
    if (!ended && (strcmp(args->argv[i], "--help") == 0 || strcmp(args->argv[i], "-h") == 0)) {
      print_help(args, flags, flag_count);
      args->help = true;
      return ISO_OK;
    }
    if (strcmp(args->argv[i], "--") == 0) ended = true;
  }
  ended = false;
  args->words = (const char **)args->argv; /* words move to the front, past flags that were read */
  for (int i = 0; i < args->argc; i++) {
    const char *word = args->argv[i];
    if (!ended && strcmp(word, "--") == 0) {
      ended = true;
    } else if (!ended && word[0] == '-' && word[1] == '-') {
      ISO_TRY(read_flag(args, flags, flag_count, &i));
    } else if (!ended && word[0] == '-' && word[1] && (word[1] < '0' || word[1] > '9')) {
      return iso_fail(ISO_ERR_USAGE, "%s: unknown flag %s; flags begin with two dashes (see isotach %s --help)",
                      args->verb->name, word, args->verb->name);
    } else {
      args->argv[words++] = args->argv[i];
    }
  }
  args->word_count = words;
  if (words < least)
    return iso_fail(ISO_ERR_USAGE, "%s: too few words; usage: isotach %s %s", args->verb->name, args->verb->name,
                    args->verb->synopsis);
  if (most >= 0 && words > most)
    return iso_fail(ISO_ERR_USAGE, "%s: \"%s\" is one word too many; usage: isotach %s %s", args->verb->name,
                    args->words[most], args->verb->name, args->verb->synopsis);
  return ISO_OK;
}

iso_status iso_subverb_run(iso_args *args, const iso_verb *table, size_t count) {
  enum { SUBVERBS = 8 };
  const char *names[SUBVERBS];
  const size_t skip = strlen(args->verb->name) + 1; /* a subverb's name is "verb sub" */
  const char *word = args->argc > 0 ? args->argv[0] : NULL;
  if (count > SUBVERBS) count = SUBVERBS;
  for (size_t i = 0; i < count; i++) names[i] = table[i].name + skip;
  if (word && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
    printf("usage: isotach %s %s\n\n%s\n", args->verb->name, args->verb->synopsis, args->verb->help);
    for (size_t i = 0; i < count; i++)
      printf("\n  isotach %s %s\n      %s\n", table[i].name, table[i].synopsis, table[i].help);
    return ISO_OK;
  }
  for (size_t i = 0; i < count && word; i++) {
    if (strcmp(word, names[i]) != 0) continue;
    iso_args rest = {.verb = &table[i], .argc = args->argc - 1, .argv = args->argv + 1};
    return table[i].run(&rest);
  }
  if (!word)
    return iso_fail(ISO_ERR_USAGE, "%s: too few words; usage: isotach %s %s", args->verb->name, args->verb->name,
                    args->verb->synopsis);
  return iso_fail(ISO_ERR_USAGE, "%s: unknown word \"%s\"; the nearest is \"%s\"", args->verb->name, word,
                  iso_nearest(word, names, count));
}

char *iso_unescape(iso_arena *arena, const char *text) {
  char *out = iso_arena_strdup(arena, text);
  size_t used = 0;
  for (const char *at = text; out && *at; at++) {
    char c = *at;
    if (c == '\\') {
      at++;
      c = *at == 'n' ? '\n' : *at == 't' ? '\t' : *at == 'r' ? '\r' : *at == '\\' ? '\\' : '\0';
      if (!c) return NULL;
    }
    out[used++] = c;
  }
  if (out) out[used] = '\0';
  return out;
}
