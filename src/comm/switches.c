/* SPDX-License-Identifier: Apache-2.0
 *
 * Which host is at which switch, as Slurm's topology.conf says it:
 *
 *   # comment
 *   SwitchName=rack1 Nodes=n[01-16],login1
 *   SwitchName=rack2 Nodes=n[17-32]
 *   SwitchName=row1  Switches=rack[1-2]
 *
 * Keys in any case; `\` at a line's end goes on in the next one. BlockName= (of Slurm's topology/block) is a switch.
 * LinkSpeed= and BlockSizes= are read over; nothing else is known.
 *
 * The one idea: lists are not written out. A name is held against each pattern, so n[0-999999999] costs no more than
 * n1.
 *
 * Invariants
 *  1. Each switch has one place: it is named once, and is below at most one other, never below itself.
 *  2. What is wrong is said with file and line; nothing is guessed.
 */
#include "comm/order.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MOST_BYTES = 1 << 20, MOST_SWITCHES = 4096, MOST_DIGITS = 18 };

typedef struct device {             /* a switch */
  const char *name, *nodes, *below; /* lists, NULL: none; in the file's text */
  int line, parent;                 /* parent -1: none */
} device;

struct iso_switches {
  char *path, *text;
  device *all;
  int count;
};

/* ---- lists of names: n[01-16,20]-ib0,login1 ---- */

/* Up to the comma that is not within brackets. */
static size_t span_of(const char *list) {
  size_t at = 0;
  for (bool within = false; list[at] && (within || list[at] != ','); at++) {
    if (list[at] == '[') within = true;
    if (list[at] == ']') within = false;
  }
  return at;
}

static const char *next_of(const char *list) {
  const size_t span = span_of(list);
  return list[span] ? list + span + 1 : NULL;
}

/* Digits at `at`, before `end`; 0: none, or too many. */
static int digits_at(const char *at, const char *end) {
  int count = 0;
  while (at + count < end && at[count] >= '0' && at[count] <= '9') count++;
  return count <= MOST_DIGITS ? count : 0;
}

static long long value_of(const char *digits, int count) {
  long long value = 0;
  for (int i = 0; i < count; i++) value = 10 * value + (digits[i] - '0');
  return value;
}

typedef struct range {
  long long low, high;
  int width; /* digits of the lower one, to which Slurm fills up with zeros */
} range;

/* Behind the range at `at`, which ends before ',' or `end` (the bracket); NULL: malformed. */
static const char *read_range(const char *at, const char *end, range *out) {
  const int low = digits_at(at, end);
  if (!low) return NULL;
  *out = (range){value_of(at, low), value_of(at, low), low};
  at += low;
  if (at < end && *at == '-') {
    const int high = digits_at(++at, end);
    if (!high) return NULL;
    out->high = value_of(at, high);
    at += high;
  }
  if (out->high < out->low || (at < end && *at != ',')) return NULL;
  if (at < end && ++at == end) return NULL;
  return at;
}

static bool is_sound(const char *pattern, size_t length) {
  const char *end = pattern + length;
  if (length == 0) return false;
  for (const char *at = pattern; at < end; at++) {
    if (*at == ']') return false;
    if (*at != '[') continue;
    const char *close = memchr(at, ']', (size_t)(end - at));
    range unused;
    if (!close || ++at == close) return false;
    while (at && at < close) at = read_range(at, close, &unused);
    if (!at) return false;
    at = close;
  }
  return true;
}

static bool admits(const char *at, const char *close, const char *digits, int count) {
  const long long value = value_of(digits, count);
  for (range r; at && at < close;) {
    at = read_range(at, close, &r);
    if (at && value >= r.low && value <= r.high && (count == r.width || (count > r.width && digits[0] != '0')))
      return true;
  }
  return false;
}

/* Keeps all places of the name that the pattern can have come to, so that brackets side by side cost nothing. */
static bool fits(const char *pattern, size_t length, const char *name) {
  const int bytes = (int)strlen(name);
  const char *end = pattern + length;
  bool at[ISO_RACK_NAME] = {true};
  if (bytes >= ISO_RACK_NAME) return false;
  for (const char *p = pattern; p < end; p++) {
    bool next[ISO_RACK_NAME] = {false}, any = false;
    const char *close = *p == '[' ? memchr(p, ']', (size_t)(end - p)) : NULL;
    for (int i = 0; i < bytes; i++) {
      if (!at[i]) continue;
      if (!close) {
        next[i + 1] = next[i + 1] || name[i] == *p;
        any = any || next[i + 1];
      }
      for (int n = 1; close && n <= MOST_DIGITS && name[i + n - 1] >= '0' && name[i + n - 1] <= '9'; n++)
        if (admits(p + 1, close, name + i, n)) any = next[i + n] = true;
    }
    if (!any) return false;
    memcpy(at, next, sizeof at);
    if (close) p = close;
  }
  return at[bytes];
}

/* How often it stands in the list. */
static int times_in(const char *list, const char *name) {
  int times = 0;
  for (; list; list = next_of(list)) times += fits(list, span_of(list), name);
  return times;
}

/* ---- reading ---- */

static iso_status refuse(const iso_switches *s, int line, const char *what, const char *name) {
  return iso_fail(ISO_ERR_CONFIG, "%s:%d: %s \"%.60s\"", s->path, line, what, name);
}

static iso_status take_list(const iso_switches *s, int line, const char *list, const char **out) {
  for (const char *at = list; at; at = next_of(at))
    if (!is_sound(at, span_of(at))) return refuse(s, line, "no list of names as in n[1-4,7],m1:", list);
  if (*out) return refuse(s, line, "a second list on one line:", list);
  *out = list;
  return ISO_OK;
}

static iso_status take_word(const iso_switches *s, device *d, char *word) {
  char *value = strchr(word, '=');
  if (!value) return refuse(s, d->line, "not KEY=VALUE:", word);
  *value++ = '\0';
  if (strcasecmp(word, "Nodes") == 0) return take_list(s, d->line, value, &d->nodes);
  if (strcasecmp(word, "Switches") == 0) return take_list(s, d->line, value, &d->below);
  if (strcasecmp(word, "LinkSpeed") == 0 || strcasecmp(word, "BlockSizes") == 0) return ISO_OK;
  if (strcasecmp(word, "SwitchName") != 0 && strcasecmp(word, "BlockName") != 0)
    return refuse(s, d->line, "only SwitchName=, BlockName=, Nodes=, Switches= and LinkSpeed= are known, not", word);
  if (d->name) return refuse(s, d->line, "a second switch on one line:", value);
  if (!*value || strlen(value) >= ISO_HOST_NAME || strpbrk(value, "[],"))
    return refuse(s, d->line, "no name of a switch (1 to 63 bytes, without brackets and commas):", value);
  d->name = value;
  return ISO_OK;
}

static iso_status take_line(iso_switches *s, int line, char *text) {
  device d = {.line = line, .parent = -1};
  bool any = false, sizes = false;
  char *rest = NULL;
  text[strcspn(text, "#")] = '\0';
  for (char *word = strtok_r(text, " \t\r\v\f", &rest); word; word = strtok_r(NULL, " \t\r\v\f", &rest)) {
    any = true;
    sizes = sizes || strncasecmp(word, "BlockSizes=", 11) == 0;
    ISO_TRY(take_word(s, &d, word));
  }
  if (!any || (sizes && !d.name)) return ISO_OK;
  if (!d.name)
    return refuse(s, line, "a line without SwitchName=, but with", d.nodes ? d.nodes : d.below ? d.below : "");
  if (!d.nodes && !d.below) return refuse(s, line, "neither Nodes= nor Switches= of switch", d.name);
  for (int i = 0; i < s->count; i++)
    if (strcmp(s->all[i].name, d.name) == 0) return refuse(s, line, "a second line of switch", d.name);
  if (s->count == MOST_SWITCHES) return refuse(s, line, "more than 4096 switches:", d.name);
  s->all[s->count++] = d;
  return ISO_OK;
}

static iso_status read_lines(iso_switches *s, size_t bytes) {
  int line = 1;
  if (memchr(s->text, '\0', bytes)) return iso_fail(ISO_ERR_CONFIG, "%s: has a NUL: no text", s->path);
  for (char *at = s->text; *at;) {
    char *end = at + strcspn(at, "\n");
    int lines = 1;
    while (*end && end > at && end[-1] == '\\') {
      end[-1] = *end = ' ';
      end += strcspn(end, "\n");
      lines++;
    }
    char *next = *end ? end + 1 : end;
    *end = '\0';
    ISO_TRY(take_line(s, line, at));
    line += lines;
    at = next;
  }
  if (s->count) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG,
                  "%s: no line with SwitchName=; write one for each rack: SwitchName=rack1 Nodes=n[1-8]", s->path);
}

/* ---- switches below switches ---- */

static iso_status put_below(iso_switches *s, int parent) {
  const device *d = &s->all[parent];
  for (const char *list = d->below; list; list = next_of(list)) {
    bool any = false;
    char name[ISO_HOST_NAME];
    (void)snprintf(name, sizeof name, "%.*s", (int)span_of(list), list);
    for (int i = 0; i < s->count; i++) {
      if (!fits(list, span_of(list), s->all[i].name)) continue;
      any = true;
      if (s->all[i].parent >= 0)
        return iso_fail(ISO_ERR_CONFIG, "%s:%d: switch %s is below %s already (line %d); put it below one only",
                        s->path, d->line, s->all[i].name, s->all[s->all[i].parent].name, s->all[s->all[i].parent].line);
      s->all[i].parent = parent;
    }
    if (!any) return refuse(s, d->line, "Switches= names what has no line of its own:", name);
  }
  return ISO_OK;
}

static iso_status link_all(iso_switches *s) {
  for (int i = 0; i < s->count; i++) ISO_TRY(put_below(s, i));
  for (int i = 0; i < s->count; i++) {
    int levels = 1;
    for (int up = s->all[i].parent; up >= 0 && levels <= s->count; up = s->all[up].parent) levels++;
    if (levels > s->count)
      return refuse(s, s->all[i].line, "below itself, by its Switches= or theirs, is switch", s->all[i].name);
    if (levels > ISO_RACK_LEVELS)
      return refuse(s, s->all[i].line, "more than 8 switches above each other; the lowest is", s->all[i].name);
  }
  return ISO_OK;
}

static iso_status open_file(iso_switches *s, const char *path) {
  struct stat info;
  size_t bytes;
  s->path = strdup(path);
  s->all = calloc(MOST_SWITCHES, sizeof *s->all);
  if (!s->path || !s->all) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to read it", path);
  if (iso_os.stat(path, &info) != 0) return iso_os_fail("read", path);
  if (!S_ISREG(info.st_mode)) return iso_fail(ISO_ERR_CONFIG, "%s: is no plain file; name a topology.conf", path);
  if (info.st_size > MOST_BYTES)
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: has %lld bytes; a topology.conf has at most 1 MiB (lists can be written short: "
                    "n[1-512])",
                    path, (long long)info.st_size);
  ISO_TRY(iso_file_read(path, &s->text, &bytes));
  ISO_TRY(read_lines(s, bytes));
  return link_all(s);
}

iso_status iso_switches_read(const char *path, iso_switches **out) {
  *out = NULL;
  iso_switches *s = calloc(1, sizeof *s);
  if (!s) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to read it", path);
  const iso_status status = open_file(s, path);
  if (status == ISO_OK)
    *out = s;
  else
    iso_switches_destroy(&s);
  return status;
}

void iso_switches_destroy(iso_switches **switches) {
  iso_switches *s = *switches;
  if (!s) return;
  free(s->path);
  free(s->text);
  free(s->all);
  free(s);
  *switches = NULL;
}

/* ---- where a host is ---- */

/* The switch; -1: none. */
static iso_status look_up(const iso_switches *s, const char *host, int *out) {
  *out = -1;
  for (int i = 0; i < s->count; i++) {
    const int times = times_in(s->all[i].nodes, host);
    if (times == 0) continue;
    if (times > 1 || *out >= 0)
      return iso_fail(ISO_ERR_CONFIG,
                      "%s: host %s stands twice, at switch %s (line %d) and at %s (line %d); leave it at one", s->path,
                      host, s->all[*out >= 0 ? *out : i].name, s->all[*out >= 0 ? *out : i].line, s->all[i].name,
                      s->all[i].line);
    *out = i;
  }
  return ISO_OK;
}

iso_status iso_switches_find(const iso_switches *s, const char *host, iso_rack_path *out) {
  int at;
  char brief[ISO_HOST_NAME];
  memset(out, 0, sizeof *out);
  ISO_TRY(look_up(s, host, &at));
  (void)snprintf(brief, sizeof brief, "%.*s", (int)strcspn(host, "."), host);
  if (at < 0 && strchr(host, '.')) ISO_TRY(look_up(s, brief, &at));
  if (at < 0)
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: host %s stands at no switch; add it to the Nodes= of its own, or leave "
                    "parallel.topology empty",
                    s->path, host);
  for (int up = at; up >= 0; up = s->all[up].parent) out->levels++;
  for (int up = at, level = out->levels; up >= 0; up = s->all[up].parent)
    (void)snprintf(out->names[--level], ISO_RACK_NAME, "%s", s->all[up].name);
  return ISO_OK;
}
