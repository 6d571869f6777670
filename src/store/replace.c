/* SPDX-License-Identifier: Apache-2.0
 *
 * A thing of the run folder gives way to a better one, which came from a mirror: what stood there goes to aside/.
 *
 * That takes two renames, and a process may be killed between them. So the new file first gets a name that says that it
 * is whole and whose place it takes, NAME.ready.<attempt>.tmp, and that name is on the disk before the old thing goes.
 * The next start gives it the place if that is empty; else the old thing still stands there, and all is as it was.
 *
 * Invariants
 *  1. Whenever a start looks, the old thing or the new one stands under the name.
 *  2. Nothing that stood under the name is deleted.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

static const char infix[] = ".ready.", suffix[] = ".tmp";
enum { ATTEMPT = 32 };

/* The length of NAME in NAME.ready.<attempt>.tmp; 0: it is no such name. */
static size_t replaced_length(const char *name) {
  const size_t length = strlen(name), tail = strlen(infix) + ATTEMPT + strlen(suffix);
  if (length <= tail || strcmp(name + length - strlen(suffix), suffix) != 0) return 0;
  const char *at = name + length - tail;
  if (strncmp(at, infix, strlen(infix)) != 0) return 0;
  return strspn(at + strlen(infix), "0123456789abcdef") == ATTEMPT ? length - tail : 0;
}

bool iso_run_replace_is_ready(const char *name) {
  return replaced_length(name) > 0;
}

static iso_status replace(iso_arena *arena, const char *run, const char *relative, const char *temporary,
                          char moved_to[256]) {
  char attempt[33];
  bool exists;
  const char *path = iso_path_join(arena, run, relative);
  moved_to[0] = 0;
  if (!path) return iso_fail(ISO_ERR_MEMORY, "no memory to replace '%s/%s'", run, relative);
  ISO_TRY(iso_path_probe(path, &exists));
  if (exists) {
    ISO_TRY(iso_attempt_id(attempt));
    const char *ready = iso_arena_printf(arena, "%s%s%s%s", path, infix, attempt, suffix);
    if (!ready) return iso_fail(ISO_ERR_MEMORY, "no memory to replace '%s'", path);
    if (iso_os.rename(temporary, ready) != 0) return iso_os_fail("rename", temporary);
    ISO_TRY(iso_parent_sync(ready));
    ISO_TRY(iso_run_set_aside(run, relative, moved_to));
    temporary = ready;
  }
  if (iso_os.rename_noreplace(temporary, path) != 0) return iso_os_fail("publish", path);
  return iso_parent_sync(path);
}

iso_status iso_run_replace(const char *run, const char *relative, const char *temporary, char moved_to[256]) {
  iso_arena *arena = iso_arena_create();
  const iso_status status = arena ? replace(arena, run, relative, temporary, moved_to)
                                  : iso_fail(ISO_ERR_MEMORY, "no memory to replace '%s/%s'", run, relative);
  iso_arena_destroy(&arena);
  return status;
}

/* ---- what a kill cut short ---- */

static iso_status finish_one(iso_arena *arena, const char *folder, const char *name) {
  bool exists;
  const char *ready = iso_path_join(arena, folder, name);
  const char *path = iso_arena_printf(arena, "%s/%.*s", folder, (int)replaced_length(name), name);
  if (!ready || !path) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(path, &exists));
  if (exists) {
    if (iso_os.unlink(ready) != 0) return iso_os_fail("delete", ready);
    return ISO_OK;
  }
  if (iso_os.rename_noreplace(ready, path) != 0) return iso_os_fail("publish", path);
  iso_note("'%s' takes its place, as was begun before the process was killed", path);
  return iso_parent_sync(path);
}

/* `deep`: in the folders of it, too. */
static iso_status finish(iso_arena *arena, const char *folder, bool deep) {
  char **names;
  size_t count;
  bool exists;
  ISO_TRY(iso_path_probe(folder, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_path_list(arena, folder, &names, &count));
  for (size_t i = 0; i < count; i++) {
    const char *child = deep ? iso_path_join(arena, folder, names[i]) : NULL;
    if (replaced_length(names[i])) ISO_TRY(finish_one(arena, folder, names[i]));
    if (deep && !child) return ISO_ERR_MEMORY;
    if (deep && iso_path_is_folder(child)) ISO_TRY(finish(arena, child, false));
  }
  return ISO_OK;
}

iso_status iso_run_replace_finish(const char *run) {
  iso_arena *arena = iso_arena_create();
  const char *snapshots = arena ? iso_path_join(arena, run, "snapshots") : NULL;
  iso_status status = snapshots ? finish(arena, run, true) : ISO_ERR_MEMORY;
  if (status == ISO_OK) status = finish(arena, snapshots, true);
  iso_arena_destroy(&arena);
  return status == ISO_ERR_MEMORY ? iso_fail(status, "no memory to look through '%s'", run) : status;
}
