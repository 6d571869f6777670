/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of the step log: heads of segments and frames, and the body of a commit. docs/formats.md draws them.
 *
 * Everything is little-endian and lies on 4 KiB borders, so that payload goes from the gradient's own memory to the
 * device and back without a copy. A head is one block: fields, zeros, and a CRC-32C over the block in which the CRC's
 * own four bytes count as zero. A payload's CRC covers its padding too: no bit of a segment is outside of a CRC.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

/* Fields stand where these structs have them on this machine, which is what the asserts pin down. */
typedef struct segment_block {
  char magic[8];
  uint32_t version, incarnation, shard, number;
  int64_t elements, first_step;
  uint32_t dtype, optimizer_version;
  char uuid[40];
  uint32_t crc;
} segment_block;
_Static_assert(offsetof(segment_block, crc) == 88, "layout of a segment's head");

typedef struct frame_block {
  char magic[8];
  uint32_t kind, codec, incarnation, shard;
  int64_t step, begin, end, bytes, number;
  uint32_t payload_crc, crc;
} frame_block;
_Static_assert(offsetof(frame_block, crc) == 68, "layout of a frame's head");

typedef struct commit_block {
  int64_t adam_step, tokens, refused_total, scored, durable, payloads, cursor_count;
  double norm, loss_sum;
  float lr, beta1, beta2, eps, weight_decay, clip, bias1, bias2;
  uint32_t refused, payloads_crc, decay, reserved;
} commit_block;
_Static_assert(sizeof(commit_block) == 120, "layout of a commit");

static const char segment_magic[8] = "ISOTLOG", frame_magic[8] = "ISOFRAM";
enum { VERSION = 2, OLDEST = 1 /* whose frames stood in the elements' order, as they still may */ };

/* CRC-32C of a block with its own CRC field, at `at`, as zeros. */
static uint32_t block_crc(const void *block, size_t at) {
  static const uint32_t zero;
  const char *bytes = block;
  uint32_t crc = iso_crc32c(0, bytes, at);
  crc = iso_crc32c(crc, &zero, sizeof zero);
  return iso_crc32c(crc, bytes + at + sizeof zero, ISO_WAL_BLOCK - at - sizeof zero);
}

static void seal(void *block, size_t at) {
  const uint32_t crc = block_crc(block, at);
  memcpy((char *)block + at, &crc, sizeof crc);
}

static bool sealed(const void *block, size_t at) {
  uint32_t crc;
  memcpy(&crc, (const char *)block + at, sizeof crc);
  return crc == block_crc(block, at);
}

void iso_wal_segment_encode(const iso_wal_segment *segment, void *block) {
  segment_block fields = {.version = VERSION,
                          .incarnation = (uint32_t)segment->incarnation,
                          .shard = (uint32_t)segment->shard,
                          .number = (uint32_t)segment->number,
                          .elements = segment->elements,
                          .first_step = segment->first_step,
                          .dtype = segment->gradient == ISO_BF16,
                          .optimizer_version = (uint32_t)segment->optimizer_version};
  memcpy(fields.magic, segment_magic, sizeof fields.magic);
  snprintf(fields.uuid, sizeof fields.uuid, "%s", segment->uuid);
  memset(block, 0, ISO_WAL_BLOCK);
  memcpy(block, &fields, sizeof fields);
  seal(block, offsetof(segment_block, crc));
}

const char *iso_wal_segment_decode(const void *block, iso_wal_segment *segment) {
  segment_block fields;
  memcpy(&fields, block, sizeof fields);
  if (memcmp(fields.magic, segment_magic, sizeof fields.magic) != 0) return "it does not begin as a log segment does";
  if (!sealed(block, offsetof(segment_block, crc))) return "the CRC-32C of its head is wrong";
  if (fields.version < OLDEST || fields.version > VERSION) return "it is of another version of the log's format";
  if (fields.elements < 1 || fields.elements > INT64_MAX / 8 || fields.dtype > 1 || fields.first_step < 1 ||
      fields.uuid[36] || fields.incarnation < 1 || fields.incarnation > INT32_MAX || fields.shard > INT32_MAX ||
      fields.number > INT32_MAX)
    return "its head has an impossible value";
  *segment = (iso_wal_segment){.incarnation = (int)fields.incarnation,
                               .shard = (int)fields.shard,
                               .number = (int)fields.number,
                               .elements = fields.elements,
                               .first_step = fields.first_step,
                               .gradient = fields.dtype ? ISO_BF16 : ISO_F32,
                               .optimizer_version = (int)fields.optimizer_version};
  memcpy(segment->uuid, fields.uuid, 37);
  return NULL;
}

void iso_wal_frame_encode(const iso_wal_frame *frame, void *block) {
  frame_block fields = {.kind = (uint32_t)frame->kind,
                        .codec = (uint32_t)frame->codec,
                        .incarnation = (uint32_t)frame->incarnation,
                        .shard = (uint32_t)frame->shard,
                        .step = frame->step,
                        .begin = frame->begin,
                        .end = frame->end,
                        .bytes = frame->bytes,
                        .number = frame->number,
                        .payload_crc = frame->payload_crc};
  memcpy(fields.magic, frame_magic, sizeof fields.magic);
  memset(block, 0, ISO_WAL_BLOCK);
  memcpy(block, &fields, sizeof fields);
  seal(block, offsetof(frame_block, crc));
}

const char *iso_wal_frame_decode(const void *block, const iso_wal_segment *segment, iso_wal_frame *frame) {
  frame_block fields;
  memcpy(&fields, block, sizeof fields);
  if (memcmp(fields.magic, frame_magic, sizeof fields.magic) != 0) return "no frame begins here";
  if (!sealed(block, offsetof(frame_block, crc))) return "the CRC-32C of a frame's head is wrong";
  const bool payload = fields.kind == ISO_WAL_PAYLOAD;
  if ((!payload && fields.kind != ISO_WAL_COMMIT) || fields.codec > ISO_WAL_PLANES || fields.step < 1 ||
      fields.bytes < 1 || fields.bytes > INT64_MAX / 2 || fields.number < 0 || fields.begin < 0 ||
      fields.end < fields.begin || fields.end > segment->elements || (payload && fields.end == fields.begin))
    return "a frame's head has an impossible value";
  if (fields.incarnation != (uint32_t)segment->incarnation || fields.shard != (uint32_t)segment->shard)
    return "a frame is of another incarnation or shard";
  const int64_t count = fields.end - fields.begin, raw = count * (int64_t)iso_dtype_size(segment->gradient);
  if (payload && fields.codec == ISO_WAL_RAW && fields.bytes != raw) return "a payload's size is not that of its range";
  if (fields.codec == ISO_WAL_PLANES &&
      (!payload || count > ISO_WAL_PACKED || fields.bytes > (int64_t)iso_wal_packed_bound(segment->gradient, count)))
    return "a packed payload is larger than any";
  *frame = (iso_wal_frame){.kind = (iso_wal_kind)fields.kind,
                           .codec = (iso_wal_codec)fields.codec,
                           .incarnation = segment->incarnation,
                           .shard = segment->shard,
                           .step = fields.step,
                           .begin = fields.begin,
                           .end = fields.end,
                           .bytes = fields.bytes,
                           .number = fields.number,
                           .payload_crc = fields.payload_crc};
  return NULL;
}

size_t iso_wal_padded(size_t bytes) {
  return (bytes + ISO_WAL_BLOCK - 1) / ISO_WAL_BLOCK * ISO_WAL_BLOCK;
}

size_t iso_wal_commit_bytes(size_t cursor_count) {
  return sizeof(commit_block) + cursor_count * sizeof(iso_cursor);
}

void iso_wal_commit_encode(const iso_wal_record *record, int64_t payloads, uint32_t payloads_crc, void *body) {
  const commit_block fields = {.adam_step = record->adam_step,
                               .tokens = record->tokens,
                               .refused_total = record->refused_total,
                               .scored = record->scored,
                               .durable = record->durable,
                               .payloads = payloads,
                               .cursor_count = (int64_t)record->cursor_count,
                               .norm = record->norm,
                               .loss_sum = record->loss_sum,
                               .lr = record->lr,
                               .beta1 = record->beta1,
                               .beta2 = record->beta2,
                               .eps = record->eps,
                               .weight_decay = record->weight_decay,
                               .clip = record->clip,
                               .bias1 = record->bias1,
                               .bias2 = record->bias2,
                               .refused = record->refused,
                               .payloads_crc = payloads_crc,
                               .decay = record->decay};
  memcpy(body, &fields, sizeof fields);
  if (record->cursor_count)
    memcpy((char *)body + sizeof fields, record->cursors, record->cursor_count * sizeof *record->cursors);
}

bool iso_wal_commit_decode(const void *body, size_t bytes, iso_wal_record *record, int64_t *payloads,
                           uint32_t *payloads_crc) {
  commit_block fields;
  if (bytes < sizeof fields) return false;
  memcpy(&fields, body, sizeof fields);
  if (fields.cursor_count < 0 || (size_t)fields.cursor_count != (bytes - sizeof fields) / sizeof(iso_cursor) ||
      (bytes - sizeof fields) % sizeof(iso_cursor) != 0 || fields.payloads < 0 || fields.refused > 1 ||
      fields.decay >= ISO_WAL_DECAYS)
    return false;
  *payloads = fields.payloads;
  *payloads_crc = fields.payloads_crc;
  *record = (iso_wal_record){.adam_step = fields.adam_step,
                             .tokens = fields.tokens,
                             .refused_total = fields.refused_total,
                             .scored = fields.scored,
                             .durable = fields.durable,
                             .norm = fields.norm,
                             .loss_sum = fields.loss_sum,
                             .lr = fields.lr,
                             .beta1 = fields.beta1,
                             .beta2 = fields.beta2,
                             .eps = fields.eps,
                             .weight_decay = fields.weight_decay,
                             .clip = fields.clip,
                             .bias1 = fields.bias1,
                             .bias2 = fields.bias2,
                             .refused = fields.refused == 1,
                             .decay = fields.decay,
                             .cursors = (const iso_cursor *)(const void *)((const char *)body + sizeof fields),
                             .cursor_count = (size_t)fields.cursor_count};
  return true;
}

iso_status iso_wal_record_own(iso_wal_record *record, iso_cursor **cursors) {
  *cursors = malloc((record->cursor_count + 1) * sizeof **cursors);
  if (!*cursors) return iso_fail(ISO_ERR_MEMORY, "log: no memory for %zu cursors", record->cursor_count);
  if (record->cursor_count) memcpy(*cursors, record->cursors, record->cursor_count * sizeof **cursors);
  record->cursors = *cursors;
  return ISO_OK;
}

void iso_wal_segment_name(const iso_wal_segment *segment, char name[40]) {
  snprintf(name, 40, "%04d-%05d-%06d.log", segment->incarnation, segment->shard, segment->number);
}

bool iso_wal_segment_name_parse(const char *name, iso_wal_segment *segment) {
  char again[40];
  int end = 0;
  *segment = (iso_wal_segment){0};
  if (sscanf(name, "%d-%d-%d.log%n", &segment->incarnation, &segment->shard, &segment->number, &end) != 3) return false;
  if (end == 0 || name[end] || segment->incarnation < 1 || segment->shard < 0 || segment->number < 0) return false;
  iso_wal_segment_name(segment, again);
  return strcmp(again, name) == 0;
}
