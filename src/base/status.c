/* SPDX-License-Identifier: Apache-2.0
 *
 * status.c: statuses, and the one place that prints log lines.
 *
 * Every line goes out with a single write(2), so lines of different threads or processes never mix. Messages carry
 * names that came from outside (paths, keys, tokens), so they are made safe first.
 *
 * Invariants
 *  1. A message is one line: control characters, C1 controls and bytes that are not UTF-8 appear as \xNN.
 *  2. A message takes at most MESSAGE_BYTES with its NUL; a longer one ends in "...".
 *  3. Only iso_fail() changes what iso_last_error() returns; errno is left as it was found.
 */
#include "base/base.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 4096, PREFIX_BYTES = 32 };

static _Thread_local char last_error[MESSAGE_BYTES];
static atomic_bool log_is_quiet;
static _Thread_local bool log_is_muted;

int iso_exit_code(iso_status status) {
  switch (status) {
  case ISO_OK:
    return 0;
  case ISO_ERR_USAGE:
  case ISO_ERR_CONFIG:
  case ISO_ERR_UNSUPPORTED:
    return 2;
  case ISO_ERR_NOT_FOUND:
  case ISO_ERR_IO:
    return 3;
  case ISO_ERR_FORMAT:
    return 4;
  case ISO_ERR_MISMATCH:
    return 5;
  case ISO_ERR_BUSY:
    return 6;
  case ISO_ERR_MEMORY:
  case ISO_ERR_SPACE:
    return 7;
  case ISO_ERR_CHECK:
    return 1;
  case ISO_ERR_NUMERIC:
    return 8;
  case ISO_STOPPED:
    return 75;
  case ISO_ERR_INTERNAL:
    return 70;
  }
  return 70;
}

const char *iso_status_name(iso_status status) {
  switch (status) {
  case ISO_OK:
    return "ok";
  case ISO_ERR_USAGE:
    return "usage";
  case ISO_ERR_CONFIG:
    return "config";
  case ISO_ERR_UNSUPPORTED:
    return "unsupported";
  case ISO_ERR_NOT_FOUND:
    return "not_found";
  case ISO_ERR_IO:
    return "io";
  case ISO_ERR_FORMAT:
    return "format";
  case ISO_ERR_MISMATCH:
    return "mismatch";
  case ISO_ERR_BUSY:
    return "busy";
  case ISO_ERR_MEMORY:
    return "memory";
  case ISO_ERR_SPACE:
    return "space";
  case ISO_ERR_CHECK:
    return "check";
  case ISO_ERR_NUMERIC:
    return "numeric";
  case ISO_STOPPED:
    return "stopped";
  case ISO_ERR_INTERNAL:
    return "internal";
  }
  return "unknown";
}

int iso_utf8_span(const char *text, size_t length) {
  const unsigned char *s = (const unsigned char *)text;
  if (length == 0) return 0;
  if (s[0] < 0x80) return 1;
  int span = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
  if (s[0] < 0xC2 || s[0] > 0xF4 || length < (size_t)span) return 0;
  /* The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF. */
  unsigned low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
  unsigned high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
  if (s[1] < low || s[1] > high) return 0;
  for (int i = 2; i < span; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  return span;
}

/* Copies `raw` to `out` (MESSAGE_BYTES) with unsafe bytes escaped; `cut` says that raw is already shortened. */
static void message_sanitise(const char *raw, size_t length, bool cut, char *out) {
  static const char digits[] = "0123456789ABCDEF";
  const size_t room = MESSAGE_BYTES - sizeof "...";
  size_t used = 0, at = 0;
  while (at < length) {
    const unsigned char *s = (const unsigned char *)raw + at;
    size_t span = (size_t)iso_utf8_span(raw + at, length - at);
    if (span == 0 && cut && length - at < 4) break; /* the sequence that the cut went through */
    bool control = s[0] < 0x20 || s[0] == 0x7F || (s[0] == 0xC2 && span == 2 && s[1] < 0xA0);
    bool safe = span > 0 && !control;
    size_t taken = span > 0 ? span : 1;
    size_t wanted = safe ? taken : 4 * taken;
    if (used + wanted > room) {
      cut = true;
      break;
    }
    for (size_t i = 0; i < taken; i++) {
      if (safe) {
        out[used++] = (char)s[i];
      } else {
        out[used++] = '\\';
        out[used++] = 'x';
        out[used++] = digits[s[i] >> 4];
        out[used++] = digits[s[i] & 15];
      }
    }
    at += taken;
  }
  memcpy(out + used, cut ? "..." : "", cut ? 4 : 1);
}

static void message_format(char *out, const char *format, va_list arguments) {
  char raw[MESSAGE_BYTES];
  int wanted = vsnprintf(raw, sizeof raw, format, arguments);
  if (wanted < 0) {
    memcpy(raw, "(message could not be formatted)", 33);
    wanted = 32;
  }
  bool cut = (size_t)wanted >= sizeof raw;
  message_sanitise(raw, cut ? sizeof raw - 1 : (size_t)wanted, cut, out);
}

static void line_write(const char *prefix, const char *message) {
  if (log_is_muted || atomic_load_explicit(&log_is_quiet, memory_order_relaxed)) return;
  char line[PREFIX_BYTES + MESSAGE_BYTES + 1];
  int length = snprintf(line, sizeof line, "%s%s\n", prefix, message);
  while (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0 && errno == EINTR) continue;
}

iso_status(iso_fail)(iso_status status, const char *format, ...) { /* parentheses: base.h has a macro for clang-tidy */
  int saved = errno;
  char message[MESSAGE_BYTES]; /* arguments may point into last_error */
  va_list arguments;
  va_start(arguments, format);
  message_format(message, format, arguments);
  va_end(arguments);
  memcpy(last_error, message, strlen(message) + 1);
  line_write("isotach: error: ", message);
  errno = saved;
  return status;
}

void iso_warn(const char *format, ...) {
  int saved = errno;
  char message[MESSAGE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  message_format(message, format, arguments);
  va_end(arguments);
  line_write("isotach: warning: ", message);
  errno = saved;
}

void iso_note(const char *format, ...) {
  int saved = errno;
  char message[MESSAGE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  message_format(message, format, arguments);
  va_end(arguments);
  line_write("isotach: ", message);
  errno = saved;
}

const char *iso_last_error(void) {
  return last_error;
}

bool iso_log_quiet(bool quiet) {
  return atomic_exchange_explicit(&log_is_quiet, quiet, memory_order_relaxed);
}

bool iso_log_mute(bool muted) {
  const bool before = log_is_muted;
  log_is_muted = muted;
  return before;
}
