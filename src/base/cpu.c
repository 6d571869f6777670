/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.c: which instruction tier this machine runs, and which cores this process may use.
 *
 * A tier counts only when every feature in its row is there and the operating system saves the registers it needs
 * (XCR0): without that, the first wide instruction would fault or lose state at a context switch.
 *
 *   avx2        AVX2, FMA, F16C                                     XMM, YMM state
 *   avx512      the above and AVX-512 F, BW, VL, DQ                 and opmask, ZMM state
 *   avx512bf16  the above and AVX512_BF16
 */
#include "base/base.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const tier_names[ISO_TIER_COUNT] = {"scalar", "avx2", "avx512", "avx512bf16"};

#if defined(__x86_64__)

static uint64_t xcr0_read(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static bool has_all(uint32_t value, uint32_t bits) {
  return (value & bits) == bits;
}

iso_tier iso_cpu_best_tier(void) {
  const uint32_t ecx1_bits = bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE;
  const uint32_t ebx7_bits = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  const uint64_t ymm_state = 0x6, zmm_state = 0xE6; /* bits 1, 2; and 5, 6, 7 */
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, ecx1_bits)) return ISO_TIER_SCALAR;
  uint64_t state = xcr0_read();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_all(b, bit_AVX2)) return ISO_TIER_SCALAR;
  if ((state & ymm_state) != ymm_state) return ISO_TIER_SCALAR;
  if (!has_all(b, ebx7_bits) || (state & zmm_state) != zmm_state) return ISO_TIER_AVX2;
  if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !has_all(a, 1u << 5)) return ISO_TIER_AVX512;
  return ISO_TIER_AVX512BF16;
}

#else

iso_tier iso_cpu_best_tier(void) {
  return ISO_TIER_SCALAR;
}

#endif

const char *iso_tier_name(iso_tier tier) {
  return (unsigned)tier < ISO_TIER_COUNT ? tier_names[tier] : "unknown";
}

iso_status iso_cpu_tier(iso_tier *tier) {
  iso_tier best = iso_cpu_best_tier();
  *tier = best;
  const char *wanted = getenv("ISOTACH_CPU");
  if (!wanted || !*wanted) return ISO_OK;
  for (int i = 0; i < ISO_TIER_COUNT; i++) {
    if (strcmp(wanted, tier_names[i]) != 0) continue;
    if ((iso_tier)i > best)
      return iso_fail(ISO_ERR_CONFIG, "ISOTACH_CPU=%s: this machine runs at most %s; set that or unset the variable",
                      wanted, tier_names[best]);
    *tier = (iso_tier)i;
    return ISO_OK;
  }
  return iso_fail(ISO_ERR_CONFIG, "ISOTACH_CPU=%s: unknown tier; use scalar, avx2, avx512 or avx512bf16", wanted);
}

/* The affinity mask, however many processors the kernel knows; *bytes is its size. Free with CPU_FREE. */
static cpu_set_t *affinity_read(size_t *bytes) {
  for (int processors = 1024; processors <= 1 << 20; processors *= 2) {
    cpu_set_t *set = CPU_ALLOC((size_t)processors);
    if (!set) return NULL;
    *bytes = CPU_ALLOC_SIZE((size_t)processors);
    CPU_ZERO_S(*bytes, set);
    if (sched_getaffinity(0, *bytes, set) == 0) return set;
    int cause = errno;
    CPU_FREE(set);
    if (cause != EINVAL) return NULL;
  }
  return NULL;
}

int iso_cpu_count(void) {
  size_t bytes;
  cpu_set_t *set = affinity_read(&bytes);
  int count = set ? CPU_COUNT_S(bytes, set) : 1;
  if (set) CPU_FREE(set);
  return count > 0 ? count : 1;
}

/* The lowest processor that shares a physical core with `cpu`; `cpu` itself when the kernel does not say. */
static int core_leader(int cpu) {
  char path[96];
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  FILE *file = fopen(path, "re");
  int leader = cpu;
  if (file) {
    if (fscanf(file, "%d", &leader) != 1) leader = cpu;
    fclose(file);
  }
  return leader;
}

int iso_cpu_order(int *cpus, int capacity) {
  size_t bytes;
  cpu_set_t *set = affinity_read(&bytes);
  if (!set) return 0;
  int limit = (int)(8 * bytes), total = 0, used = 0;
  int *allowed = malloc((size_t)limit * 3 * sizeof *allowed);
  if (allowed) {
    int *leader = allowed + limit, *round = leader + limit;
    for (int cpu = 0; cpu < limit; cpu++) {
      if (!CPU_ISSET_S((size_t)cpu, bytes, set)) continue;
      allowed[total] = cpu;
      leader[total] = core_leader(cpu);
      round[total] = 0; /* how many earlier allowed processors are on the same core */
      for (int i = 0; i < total; i++) round[total] += leader[i] == leader[total];
      total++;
    }
    for (int turn = 0; used < capacity && used < total; turn++)
      for (int i = 0; i < total && used < capacity; i++)
        if (round[i] == turn) cpus[used++] = allowed[i];
    free(allowed);
  }
  CPU_FREE(set);
  return used;
}

int iso_cpu_part(int part, int parts) {
  size_t bytes;
  cpu_set_t *set = affinity_read(&bytes);
  if (!set) return 0;
  const int limit = (int)(8 * bytes);
  int total = 0;
  int *cpus = malloc((size_t)limit * 2 * sizeof *cpus);
  if (!cpus) {
    CPU_FREE(set);
    return 0;
  }
  int *leader = cpus + limit; /* of cpus[i]; both ordered by core, then number */
  for (int cpu = 0; cpu < limit; cpu++) {
    if (!CPU_ISSET_S((size_t)cpu, bytes, set)) continue;
    const int mine = core_leader(cpu);
    int at = total++;
    for (; at > 0 && leader[at - 1] > mine; at--) {
      leader[at] = leader[at - 1];
      cpus[at] = cpus[at - 1];
    }
    leader[at] = mine;
    cpus[at] = cpu;
  }
  const int64_t all = total;
  const int begin = total < parts ? part % (total ? total : 1) : (int)(all * part / parts);
  const int end = total < parts ? begin + 1 : (int)(all * (part + 1) / parts);
  CPU_ZERO_S(bytes, set);
  for (int i = begin; i < end && i < total; i++) CPU_SET_S((size_t)cpus[i], bytes, set);
  const bool kept = total > 0 && sched_setaffinity(0, bytes, set) == 0;
  free(cpus);
  CPU_FREE(set);
  return kept ? end - begin : 0;
}
