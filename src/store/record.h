/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c: small files that verify themselves, and reading that says nothing but what is wrong. Apart from store.h
 * because those who only write a run's small files need no more than this.
 */
#ifndef ISO_STORE_RECORD_H
#define ISO_STORE_RECORD_H

#include "base/base.h"

/* ---- quiet reading ---- */

/* Functions that take `faults` log nothing. When they fail, a line "NAME: cause" is appended. ISO_ERR_FORMAT then means
 * that the file is damaged (missing, cut, altered, unreadable sector); anything else that the system refused to show
 * it. */

/* The first line, without its end; `faults` is cut there. */
const char *iso_fault_first(iso_string *faults);
/* Whether a line from this byte on says that the disk would not read something: it may be whole all the same. */
bool iso_fault_unread(const iso_string *faults, size_t from);

typedef struct iso_probe {
  const char *path; /* borrowed */
  const char *name; /* how faults call it; borrowed */
  int fd;           /* -1: closed */
  int64_t bytes;
} iso_probe;
iso_status iso_probe_open(iso_probe *probe, const char *path, const char *name, iso_string *faults) ISO_MUST_CHECK;
iso_status iso_probe_read(const iso_probe *probe, void *data, size_t bytes, int64_t offset,
                          iso_string *faults) ISO_MUST_CHECK;
void iso_probe_close(iso_probe *probe);

/* ---- records ---- */

/* Completes a JSON object: `text` holds "{" and members without a comma after the last; appends the member "crc32c"
 * over all text before it, and the end. */
void iso_record_seal(iso_string *text);
iso_status iso_record_read(const char *path, const char *name, iso_json **json, iso_string *faults) ISO_MUST_CHECK;
/* The same, but a file of before it was sealed is read too: *sealed false. */
iso_status iso_record_read_any(const char *path, const char *name, iso_json **json, bool *sealed,
                               iso_string *faults) ISO_MUST_CHECK;
/* Members of a record. false when missing, of another type, out of [least, 2^53], or too long. */
bool iso_record_whole(const iso_json *item, int64_t least, int64_t *out);
bool iso_record_int(const iso_json *json, const char *key, int64_t least, int64_t *out);
bool iso_record_text(const iso_json *json, const char *key, char *out, size_t capacity);

/* ---- lines: files of which each line is an object with a seal of its own ---- */

/* `text` from `begin` on holds "{" and members; appends the member "crc32c" over them, and the line's end. */
void iso_record_seal_line(iso_string *text, size_t begin);
/* `text` is one plain line; appends " crc32c:" with the CRC over it, and its end. */
void iso_record_seal_plain(iso_string *text);
typedef enum iso_seal { ISO_SEAL_GOOD, ISO_SEAL_NONE /* of before lines had one */, ISO_SEAL_BROKEN } iso_seal;
/* A line without its newline; BROKEN: `cause` says how. */
iso_seal iso_record_check_line(const char *line, size_t bytes, char cause[96]);
/* A plain line with its newline. */
iso_seal iso_record_check_plain(const char *text, size_t bytes, char cause[96]);
/* Length of the sealed line that the text begins with, whatever follows; 0: none. */
size_t iso_record_line_end(const char *text, size_t bytes);

#endif
