/* SPDX-License-Identifier: Apache-2.0
 *
 * A run that is named by where its target or mirror is (s3://bucket/prefix): the verb works on a copy in a temporary
 * folder, which goes with the process. Nothing is written there.
 *
 * What is damaged there is set aside in the copy, and kept as lines for who verifies.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { TRIES = 4 };

static char *folder; /* temporary; NULL: nothing was brought */
static iso_string damage;

/* All of it; what a run that goes on deletes meanwhile is listed anew. */
static iso_status bring(const char *where, const char *to) {
  iso_restore_report report = {0};
  iso_target *target;
  ISO_TRY(iso_target_open(where, &target));
  target->first = true;
  const bool muted = iso_log_quiet(true);
  iso_status status = iso_mirror_restore(to, target, false, &report);
  for (int tries = 1; status == ISO_ERR_NOT_FOUND && tries < TRIES; tries++) {
    iso_string_fini(&report.text);
    status = iso_mirror_restore(to, target, false, &report);
  }
  iso_log_quiet(muted);
  if (status != ISO_OK)
    status = iso_fail(status, "%s", iso_last_error());
  else if (!report.holds)
    status =
        iso_fail(ISO_ERR_NOT_FOUND, "'%s' holds no run; name what checkpoint.target or checkpoint.mirror names", where);
  else
    iso_note("'%s': %lld files, %.1f MB were read", where, (long long)report.files, (double)report.bytes * 1e-6);
  damage = report.text;
  iso_target_close(&target);
  return status;
}

/* The copy's path ends as the run's name does, so that messages name it. */
static iso_status make_folder(const char *where, iso_string *path) {
  const char *base = getenv("TMPDIR");
  size_t length = strlen(where);
  while (length && where[length - 1] == '/') length--;
  if (asprintf(&folder, "%s/isotach-run.XXXXXX", base && *base ? base : "/tmp") < 0) folder = NULL;
  if (!folder) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to read it", where);
  if (!mkdtemp(folder)) {
    const iso_status status = iso_os_fail("create folder", folder);
    free(folder);
    folder = NULL;
    return status;
  }
  iso_string_printf(path, "%s/%.*s", folder, (int)length - 5, where + 5);
  return iso_string_failed(path) ? ISO_ERR_MEMORY : iso_path_make(path->data);
}

iso_status iso_args_bring_run(iso_args *args) {
  static char word[4096];
  char where[4000];
  int64_t step;
  iso_string path = {0};
  if (!iso_blob_is_remote(args->words[0])) return ISO_OK;
  ISO_TRY(iso_run_path_split(args->words[0], where, sizeof where, &step));
  iso_status status = make_folder(where, &path);
  if (status == ISO_OK) status = bring(where, path.data);
  if (status == ISO_OK) {
    if (step >= 0) iso_string_printf(&path, "@%lld", (long long)step);
    snprintf(word, sizeof word, "%s", path.data);
    args->words[0] = word;
  }
  iso_string_fini(&path);
  return status;
}

const char *iso_brought_damage(void) {
  return damage.length ? damage.data : "";
}

void iso_brought_remove(void) {
  if (folder) iso_folder_remove(folder);
  free(folder);
  folder = NULL;
  iso_string_fini(&damage);
}
