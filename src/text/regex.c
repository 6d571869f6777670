/* SPDX-License-Identifier: Apache-2.0
 *
 * regex.c: pre-tokenizers that no scanner of ours implements, through PCRE2 (UTF, Unicode properties, JIT).
 *
 * Exactness here is PCRE2's: its Unicode tables are those of the installed library, and its syntax differs in rare
 * places from the reference's engines. docs/tokenizers.md says so.
 *
 * Invariants
 *  1. Subjects are valid UTF-8 (checked by the caller), so PCRE2 does not check them again for each piece.
 *  2. A pattern that backtracks without end hits PCRE2's match limit and is an error, not a hang.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/text.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct iso_regex {
  pcre2_code *code;
};

struct iso_regex_match {
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
};

enum { MATCH_LIMIT = 10 * 1000 * 1000, JIT_STACK_BYTES = 8 << 20, PATTERN_LIMIT = 64 << 10 };

iso_status iso_regex_create(const char *pattern, const char *where, iso_regex **out) {
  *out = NULL;
  size_t length = strlen(pattern);
  if (length == 0 || length > PATTERN_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "%s: the pre-tokenizer's regular expression has %zu bytes (1 to %d are allowed)",
                    where, length, PATTERN_LIMIT);
  int error;
  PCRE2_SIZE offset;
  pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, length, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                   &offset, NULL);
  if (!code) {
    char message[256] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: the pre-tokenizer's regular expression is not understood at byte %zu: %s",
                    where, (size_t)offset, message);
  }
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without JIT it is slower, not different */
  iso_regex *regex = calloc(1, sizeof *regex);
  if (!regex) {
    pcre2_code_free(code);
    return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", where);
  }
  regex->code = code;
  *out = regex;
  return ISO_OK;
}

void iso_regex_destroy(iso_regex **regex) {
  if (!regex || !*regex) return;
  pcre2_code_free((*regex)->code);
  free(*regex);
  *regex = NULL;
}

iso_regex_match *iso_regex_match_create(const iso_regex *regex) {
  iso_regex_match *match = calloc(1, sizeof *match);
  if (!match) return NULL;
  match->data = pcre2_match_data_create_from_pattern(regex->code, NULL);
  match->context = pcre2_match_context_create(NULL);
  match->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
  if (!match->data || !match->context) {
    iso_regex_match_destroy(&match);
    return NULL;
  }
  pcre2_set_match_limit(match->context, MATCH_LIMIT);
  if (match->stack) pcre2_jit_stack_assign(match->context, NULL, match->stack);
  return match;
}

void iso_regex_match_destroy(iso_regex_match **match) {
  if (!match || !*match) return;
  pcre2_match_data_free((*match)->data);
  pcre2_match_context_free((*match)->context);
  pcre2_jit_stack_free((*match)->stack);
  free(*match);
  *match = NULL;
}

iso_status iso_regex_next(const iso_regex *regex, iso_regex_match *match, const char *text, size_t length, size_t from,
                          size_t *start, size_t *stop) {
  *start = *stop = length;
  for (size_t at = from; at < length;) {
    int found = pcre2_match(regex->code, (PCRE2_SPTR)text, length, at, PCRE2_NO_UTF_CHECK, match->data, match->context);
    if (found == PCRE2_ERROR_NOMATCH) return ISO_OK;
    if (found < 0) {
      char message[256] = "";
      pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
      return iso_fail(ISO_ERR_UNSUPPORTED,
                      "the pre-tokenizer's regular expression failed at byte %zu of a text: %s; use another tokenizer "
                      "or a simpler expression",
                      at, message);
    }
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(match->data);
    if (places[1] > places[0] && places[0] >= at) {
      *start = places[0];
      *stop = places[1];
      return ISO_OK;
    }
    at = places[0] > at ? places[0] : at; /* an empty match (or \K's): go on behind the next character */
    size_t bytes = 0;
    if (at < length) (void)iso_utf8_decode((const uint8_t *)text + at, &bytes);
    at += bytes;
  }
  return ISO_OK;
}
