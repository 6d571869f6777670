/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c: arenas (many small things, one lifetime), slabs (few large planned things), growing strings.
 *
 * Invariants
 *  1. What an arena or a slab hands out is zeroed.
 *  2. A slab that the machine cannot back is refused with both numbers in the message before it is mapped. Slabs are
 *     touched lazily, so the part of earlier slabs that is not resident yet counts as taken.
 *  3. A string whose growth failed is empty from then on and iso_string_failed() says so; it stays usable as "".
 *
 * Not here: pools for threads other than the owner; nothing in this file but slabs is thread-safe.
 */
#include "base/base.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- arenas ---- */

enum { ARENA_ALIGN = 16, ARENA_FIRST_BYTES = 16 << 10, ARENA_LARGEST_BYTES = 1 << 20 };

typedef struct arena_block {
  struct arena_block *next;
  size_t capacity; /* bytes of data */
  size_t used;
  _Alignas(ARENA_ALIGN) unsigned char data[];
} arena_block;

struct iso_arena {
  arena_block *blocks; /* the head is the one being filled; oversized ones stand behind it */
  size_t next_bytes;   /* capacity of the next ordinary block */
};

iso_arena *iso_arena_create(void) {
  iso_arena *arena = calloc(1, sizeof *arena);
  if (!arena) {
    iso_fail(ISO_ERR_MEMORY, "cannot create an arena: out of memory");
    return NULL;
  }
  arena->next_bytes = ARENA_FIRST_BYTES;
  return arena;
}

void iso_arena_destroy(iso_arena **arena) {
  if (!arena || !*arena) return;
  for (arena_block *block = (*arena)->blocks; block;) {
    arena_block *next = block->next;
    free(block);
    block = next;
  }
  free(*arena);
  *arena = NULL;
}

/* A block of `bytes`, put at the head, or behind it when it is for one large allocation only. */
static arena_block *arena_grow(iso_arena *arena, size_t bytes, bool single) {
  arena_block *block = calloc(1, sizeof *block + bytes);
  if (!block) {
    iso_fail(ISO_ERR_MEMORY, "cannot allocate %zu bytes for an arena: out of memory", bytes);
    return NULL;
  }
  block->capacity = bytes;
  if (single && arena->blocks) {
    block->next = arena->blocks->next;
    arena->blocks->next = block;
  } else {
    block->next = arena->blocks;
    arena->blocks = block;
  }
  return block;
}

void *iso_arena_alloc(iso_arena *arena, size_t bytes) {
  if (bytes > PTRDIFF_MAX - sizeof(arena_block) - ARENA_ALIGN) {
    iso_fail(ISO_ERR_MEMORY, "cannot allocate %zu bytes for an arena: more than the address space", bytes);
    return NULL;
  }
  size_t rounded = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
  if (rounded == 0) rounded = ARENA_ALIGN; /* distinct addresses for empty objects too */
  arena_block *block = arena->blocks;
  if (!block || block->capacity - block->used < rounded) {
    bool single = rounded > arena->next_bytes / 4;
    block = arena_grow(arena, single ? rounded : arena->next_bytes, single);
    if (!block) return NULL;
    if (!single && arena->next_bytes < ARENA_LARGEST_BYTES) arena->next_bytes *= 2;
  }
  void *result = block->data + block->used;
  block->used += rounded;
  return result;
}

char *iso_arena_strdup(iso_arena *arena, const char *text) {
  size_t bytes = strlen(text) + 1;
  char *copy = iso_arena_alloc(arena, bytes);
  return copy ? memcpy(copy, text, bytes) : NULL;
}

char *iso_arena_printf(iso_arena *arena, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char *text = length < 0 ? NULL : iso_arena_alloc(arena, (size_t)length + 1);
  if (text) vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  return text;
}

/* ---- slabs ---- */

#define SLAB_ALIGN ((size_t)2 << 20)
static atomic_size_t slab_bytes_total;

/* What is mapped for a slab: whole huge pages when it holds at least one, else whole pages. */
static size_t slab_mapped_bytes(size_t bytes) {
  size_t unit = bytes >= SLAB_ALIGN ? SLAB_ALIGN : 4096;
  return bytes == 0 ? unit : (bytes + unit - 1) / unit * unit;
}

static void *slab_refuse(size_t bytes, const char *name, const char *cause) {
  iso_fail(ISO_ERR_MEMORY, "cannot allocate %.1f MiB for %s: %s", (double)bytes / 1048576, name, cause);
  return NULL;
}

void *iso_slab_alloc(size_t bytes, const char *name) {
  if (bytes > PTRDIFF_MAX / 2) return slab_refuse(bytes, name, "more than the address space");
  size_t mapped = slab_mapped_bytes(bytes);
  int64_t available = iso_memory_available();
  int64_t untouched = (int64_t)iso_slab_total() - iso_memory_resident();
  if (untouched > 0) available -= untouched;
  if (available < (int64_t)mapped) {
    char cause[96];
    snprintf(cause, sizeof cause, "only %.1f MiB are available; use a smaller size or free memory",
             (double)(available < 0 ? 0 : available) / 1048576);
    return slab_refuse(bytes, name, cause);
  }
  unsigned char *raw = mmap(NULL, mapped + SLAB_ALIGN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return slab_refuse(bytes, name, strerror(errno));
  size_t head = (SLAB_ALIGN - (uintptr_t)raw % SLAB_ALIGN) % SLAB_ALIGN;
  if (head > 0) munmap(raw, head);
  munmap(raw + head + mapped, SLAB_ALIGN - head);
  (void)madvise(raw + head, mapped, MADV_HUGEPAGE); /* a wish: kernels without huge pages refuse it */
  atomic_fetch_add(&slab_bytes_total, bytes);
  return raw + head;
}

void *iso_huge_alloc(size_t bytes) {
  if (bytes > PTRDIFF_MAX / 2) return NULL;
  const size_t padded = (bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
  void *memory = aligned_alloc(SLAB_ALIGN, padded ? padded : SLAB_ALIGN);
  if (memory) (void)madvise(memory, padded, MADV_HUGEPAGE);
  return memory;
}

void iso_slab_free(void *slab, size_t bytes) {
  if (!slab) return;
  munmap(slab, slab_mapped_bytes(bytes));
  atomic_fetch_sub(&slab_bytes_total, bytes);
}

size_t iso_slab_total(void) {
  return atomic_load(&slab_bytes_total);
}

/* ---- strings ---- */

static char string_failed_data[1] = ""; /* stands for a string that could not grow; never written */

static void string_fail(iso_string *string, size_t length) {
  iso_fail(ISO_ERR_MEMORY, "cannot grow a string of %zu bytes by %zu: out of memory", string->length, length);
  free(string->data);
  *string = (iso_string){.data = string_failed_data, .length = 0, .capacity = SIZE_MAX};
}

bool iso_string_failed(const iso_string *string) {
  return string->data == string_failed_data;
}

/* Makes room for `length` more bytes and a NUL. */
static bool string_reserve(iso_string *string, size_t length) {
  if (iso_string_failed(string)) return false;
  if (length > PTRDIFF_MAX / 4 || string->length > PTRDIFF_MAX / 4) {
    string_fail(string, length);
    return false;
  }
  size_t wanted = string->length + length + 1;
  if (wanted <= string->capacity) return true;
  size_t capacity = string->capacity < 64 ? 64 : string->capacity * 2;
  if (capacity < wanted) capacity = wanted;
  char *data = realloc(string->data, capacity);
  if (!data) {
    string_fail(string, length);
    return false;
  }
  string->data = data;
  string->capacity = capacity;
  return true;
}

void iso_string_append(iso_string *string, const void *bytes, size_t length) {
  if (!string_reserve(string, length)) return;
  if (length > 0) memcpy(string->data + string->length, bytes, length);
  string->length += length;
  string->data[string->length] = '\0';
}

void iso_string_printf(iso_string *string, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (length >= 0 && string_reserve(string, (size_t)length)) {
    vsnprintf(string->data + string->length, (size_t)length + 1, format, again);
    string->length += (size_t)length;
  }
  va_end(again);
}

void iso_string_fini(iso_string *string) {
  if (!iso_string_failed(string)) free(string->data);
  *string = (iso_string){0};
}

void iso_text_tame(char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    const unsigned char c = (unsigned char)text[i], next = i + 1 < bytes ? (unsigned char)text[i + 1] : 0;
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) text[i] = '?';
    if (c == 0xC2 && next >= 0x80 && next < 0xA0) text[i] = text[i + 1] = '?'; /* the same with eight bits */
  }
}
