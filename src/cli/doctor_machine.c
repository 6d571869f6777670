/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor, the machine: build and tier, matrix products against the measured peak, limits of the process, the
 * clock.
 *
 * Products are forward products of the model's widest layer (at most WIDEST on a side), 2,048 rows, in the type that
 * the run computes in. While they run, /proc/stat says how much of the processors others took: stolen by the host of a
 * virtual machine, or by other processes.
 */
#include <string.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/cli.h"

static const double products_s = 1.5;
static const double good_share = 0.75; /* of the peak; bench gemm has the shapes one by one */
static const double most_share = 1.15; /* beyond it the peak was taken while others had the processors */
static const double most_taken = 0.05; /* of the processors' time, by others */
enum { ROWS = 2048, WIDEST = 4096, LEAST_FILES = 256 };

static void check_build(iso_doctor *d) {
  struct utsname system = {0};
  (void)uname(&system);
  iso_tier tier;
  if (iso_cpu_tier(&tier) != ISO_OK) {
    iso_doctor_failed(d, "build", ISO_VERDICT_STOP, "a tier that this machine runs", "unset ISOTACH_CPU");
    return;
  }
  const bool best = tier == iso_cpu_best_tier();
  const char *ranks = d->launched ? ""
                                  : iso_arena_printf(d->arena, "; %lld rank%s of this binary on this host",
                                                     (long long)d->ranks, iso_plural(d->ranks));
  iso_doctor_add(d, "build", best ? ISO_VERDICT_OK : ISO_VERDICT_WARNING,
                 best ? "" : "the best tier that the machine has",
                 "unset ISOTACH_CPU, unless another machine's bits are wanted", "isotach %s, tier %s%s%s; %s %s%s",
                 ISO_VERSION, iso_tier_name(tier), best ? "" : " where the best is ",
                 best ? "" : iso_tier_name(iso_cpu_best_tier()), system.sysname, system.release, ranks ? ranks : "");
}

/* ---- products ---- */

/* Jiffies of all processors: taken by the host, used, in all. */
typedef struct busy {
  double stolen, used, all;
} busy;

static bool read_busy(busy *out) {
  FILE *file = fopen("/proc/stat", "re");
  double t[8] = {0};
  const int got =
      file ? fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7])
           : 0;
  if (file) (void)fclose(file);
  if (got < 8) return false;
  const double idle = t[3] + t[4];
  *out = (busy){.stolen = t[7], .used = t[0] + t[1] + t[2] + t[5] + t[6]};
  out->all = out->stolen + out->used + idle;
  return true;
}

typedef struct products {
  iso_device *device;
  iso_worker worker;
  iso_gemm_args gemm;
  iso_dtype type;
  int64_t m, n, k;
  void *a, *b, *c, *scratch;
  size_t sizes[4];
} products;

static void run_thread(void *context, int thread) {
  const products *p = context;
  iso_worker worker = p->worker;
  worker.thread = thread;
  iso_device_kernels(p->device)->gemm(&p->gemm, &worker);
}

static void fill(void *data, size_t count, iso_dtype type) {
  for (size_t i = 0; i < count; i++) {
    const float value = (float)((i * 2654435761U >> 16) % 255 + 1) / 256 - 0.5F;
    if (type == ISO_F32)
      ((float *)data)[i] = value;
    else
      ((iso_bf16 *)data)[i] = iso_bf16_from_f32(value);
  }
}

static iso_status products_init(products *p) {
  const size_t size = iso_dtype_size(p->type), m = (size_t)p->m, n = (size_t)p->n, k = (size_t)p->k;
  p->worker.threads = iso_device_threads(p->device);
  p->worker.team = p->worker.threads > 1 ? iso_device_team(p->device) : NULL;
  p->sizes[0] = m * k * size, p->sizes[1] = n * k * size, p->sizes[2] = m * n * size;
  p->sizes[3] = iso_gemm_scratch(p->m, p->n, p->k, p->type, p->worker.threads) + 64;
  void **slabs[4] = {&p->a, &p->b, &p->c, &p->scratch};
  for (int i = 0; i < 4; i++)
    if (!(*slabs[i] = iso_slab_alloc(p->sizes[i], "doctor's products"))) return ISO_ERR_MEMORY;
  fill(p->a, m * k, p->type);
  fill(p->b, n * k, p->type);
  p->worker.scratch = p->scratch;
  p->gemm = (iso_gemm_args){.a = {p->a, p->m, p->k, p->k, p->type},
                            .b = {p->b, p->n, p->k, p->k, p->type},
                            .c = {p->c, p->m, p->n, p->n, p->type},
                            .b_transposed = true};
  return ISO_OK;
}

static void products_fini(products *p) {
  void *slabs[4] = {p->a, p->b, p->c, p->scratch};
  for (int i = 0; i < 4; i++) iso_slab_free(slabs[i], p->sizes[i]);
}

/* Best GFLOP/s of runs over products_s, and the best peak among them. */
static void measure_products(products *p, double seconds, double *gflops, double *peak) {
  const double flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
  const double until_s = iso_clock_s() + seconds;
  *gflops = *peak = 0;
  for (int run = 0; run < 4 || iso_clock_s() < until_s; run++) {
    if (run % 8 == 0) {
      const double now = iso_device_peak(p->device, p->type);
      if (now > *peak) *peak = now;
    }
    const double began = iso_clock_s();
    iso_team_run(iso_device_team(p->device), run_thread, p);
    const double rate = flop / (iso_clock_s() - began) * 1e-9;
    if (run > 0 && rate > *gflops) *gflops = rate;
  }
}

static void check_quiet(iso_doctor *d, const busy *before, const busy *after, double own_s) {
  const double all = after->all - before->all, ticks = (double)sysconf(_SC_CLK_TCK);
  if (all <= 0 || ticks <= 0) return;
  const double stolen = (after->stolen - before->stolen) / all;
  double others = (after->used - before->used) / all - own_s * ticks / all;
  if (others < 0) others = 0;
  const bool quiet = stolen <= most_taken && others <= most_taken;
  d->others = others;
  iso_doctor_add(d, "other work", quiet ? ISO_VERDICT_OK : ISO_VERDICT_WARNING, "at most 5% each",
                 stolen > most_taken ? "the host of this virtual machine is shared: choose one that is not"
                                     : "stop what else runs here (the system's top shows it)",
                 "%.1f%% of the processors' time was used by other processes, %.1f%% stolen by the machine's host",
                 100 * others, 100 * stolen);
}

static double own_cpu_s(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void check_products(iso_doctor *d, iso_device *device) {
  iso_model_config model;
  if (iso_run_model(&d->config, &model) != ISO_OK) return; /* said by the check of the model */
  products p = {.device = device,
                .type = iso_config_compute(&d->config),
                .m = ROWS,
                .n = model.inner < WIDEST ? model.inner : WIDEST,
                .k = model.width < WIDEST ? model.width : WIDEST};
  iso_model_config_fini(&model);
  busy before, after;
  double gflops = 0, peak = 0;
  const bool counted = read_busy(&before);
  const double cpu_s = own_cpu_s();
  if (products_init(&p) == ISO_OK) measure_products(&p, products_s * d->patience, &gflops, &peak);
  if (peak > 0) {
    const double share = gflops / peak;
    const bool narrow = p.n < 512 || p.k < 256; /* too little work for a product to come near the peak */
    const bool wrong = share > most_share;
    iso_doctor_add(d, "matrix products",
                   (share >= good_share || narrow) && !wrong ? ISO_VERDICT_OK : ISO_VERDICT_WARNING,
                   narrow ? "" : "75% of the peak",
                   wrong ? "more than the peak cannot be: it was measured too low, beside other work; try again"
                         : "isotach bench gemm shows which products are slow; look for other work on the machine",
                   "%lld x %lld x %lld in %s on %d thread%s: %.0f of %.0f GFLOP/s, %.0f%%%s", (long long)p.m,
                   (long long)p.n, (long long)p.k, p.type == ISO_F32 ? "float32" : "bfloat16", p.worker.threads,
                   iso_plural(p.worker.threads), gflops, peak, 100 * share, narrow ? "; the model is narrow" : "");
  } else {
    iso_doctor_failed(d, "matrix products", ISO_VERDICT_WARNING, "", "free some memory");
  }
  if (counted && peak > 0 && read_busy(&after)) check_quiet(d, &before, &after, own_cpu_s() - cpu_s);
  products_fini(&p);
}

/* ---- limits and clock ---- */

static void check_limits(iso_doctor *d) {
  struct rlimit files = {0}, size = {0};
  (void)getrlimit(RLIMIT_NOFILE, &files);
  (void)getrlimit(RLIMIT_FSIZE, &size);
  const bool few = files.rlim_cur < LEAST_FILES, endless = size.rlim_cur == RLIM_INFINITY;
  const char *largest =
      endless ? "any size" : iso_arena_printf(d->arena, "at most %.0f MB", (double)size.rlim_cur * 1e-6);
  iso_doctor_add(d, "limits", few || !endless ? ISO_VERDICT_WARNING : ISO_VERDICT_OK,
                 "256 open files, files of any size", few ? "ulimit -n 4096" : "ulimit -f unlimited",
                 "%llu open files, of %s; %d processor%s for this process", (unsigned long long)files.rlim_cur,
                 largest ? largest : "?", iso_cpu_count(), iso_plural(iso_cpu_count()));
}

static void check_clock(iso_doctor *d) {
  char source[64] = "unknown";
  FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
  if (file) {
    if (fscanf(file, "%63s", source) != 1) strcpy(source, "unknown");
    (void)fclose(file);
  }
  struct timex timex = {0};
  const int state = adjtimex(&timex);
  const bool slow = strcmp(source, "hpet") == 0 || strcmp(source, "acpi_pm") == 0;
  const double began = iso_clock_s();
  for (int i = 0; i < 1000; i++) (void)iso_clock_s();
  const double read_ns = (iso_clock_s() - began) * 1e6;
  iso_doctor_add(d, "clock", slow || read_ns > 1000 ? ISO_VERDICT_WARNING : ISO_VERDICT_OK, "read in less than 1000 ns",
                 "let the kernel use the processor's counter (clocksource=tsc)",
                 "source %s, read in %.0f ns; %s a time server%s", source, read_ns,
                 state >= 0 && state != TIME_ERROR && !(timex.status & STA_UNSYNC) ? "set by" : "not set by",
                 d->launched ? "" : " (one host: its ranks have one clock)");
}

void iso_doctor_machine(iso_doctor *d) {
  iso_device *device;
  check_build(d);
  check_limits(d);
  check_clock(d);
  if (d->stops) return;
  iso_doctor_links(d); /* before a team of threads is pinned */
  if (iso_device_create((int)d->config.threads, &device) != ISO_OK) {
    iso_doctor_failed(d, "threads", ISO_VERDICT_STOP, "`threads` of the config", "lower `threads`");
    return;
  }
  check_products(d, device);
  iso_device_destroy(&device);
}
