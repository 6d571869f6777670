/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding and loading the module that knows MPI.
 *
 * It stands beside the program in a build, and in ISO_MODULE_FOLDER (relative to the folder above the program's) when
 * installed. Its names go to all libraries, since an MPI library's own plugins look for them there.
 *
 * Where both Open MPI and MPICH were there when it was built, isotach-mpi.so is Open MPI's and isotach-mpich.so the
 * other one's: of two MPIs only the one whose launcher started this process finds the other ranks. Hydra, and what
 * speaks PMI alone (srun --mpi=pmi2), go with MPICH.
 */
#include "comm/comm.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "isotach-mpi.so"
#define MPICH  "isotach-mpich.so"

static bool find_named(const char *name, char path[PATH_MAX]) {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return false;
  program[length] = '\0';
  char *slash = strrchr(program, '/');
  if (!slash) return false;
  *slash = '\0';
  static const char *const places[] = {"", "/../" ISO_MODULE_FOLDER};
  for (size_t i = 0; i < ISO_COUNT(places); i++) {
    const int made = snprintf(path, PATH_MAX, "%s%s/%s", program, places[i], name);
    if (made > 0 && made < PATH_MAX && access(path, R_OK) == 0) return true;
  }
  return false;
}

static bool is_set(const char *name) {
  const char *value = getenv(name);
  return value && *value;
}

static bool find(char path[PATH_MAX]) {
  const bool open_mpi = is_set("OMPI_COMM_WORLD_RANK") || is_set("PMIX_RANK");
  const bool mpich = !open_mpi && is_set("PMI_RANK");
  if (mpich && find_named(MPICH, path)) return true;
  return find_named(MODULE, path) || find_named(MPICH, path);
}

bool iso_mpi_exists(void) {
  char path[PATH_MAX];
  return find(path);
}

iso_status iso_mpi_load(const iso_mpi **out) {
  char path[PATH_MAX];
  *out = NULL;
  if (!find(path))
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "MPI: there is no module " MODULE " beside the program; install libopenmpi-dev (or libmpich-dev) "
                    "and build again");
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return iso_fail(ISO_ERR_UNSUPPORTED, "MPI: cannot load %s: %s; install %s", path, dlerror(),
                    strstr(path, MPICH) ? "libmpich12" : "libopenmpi3");
  void *symbol = dlsym(library, "iso_mpi_module");
  const iso_mpi *(*module)(void) = NULL;
  memcpy(&module, &symbol, sizeof module); /* ISO C has no conversion */
  const iso_mpi *found = module ? module() : NULL;
  if (!found || found->version != ISO_MPI_VERSION) {
    dlclose(library);
    return iso_fail(ISO_ERR_UNSUPPORTED, "MPI: %s is of another version; build again", path);
  }
  *out = found;
  return ISO_OK;
}
