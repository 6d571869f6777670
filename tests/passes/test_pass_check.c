/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker against an oracle: programs are damaged at random (an operand moved, a barrier dropped, two instructions
 * swapped, accumulation changed) and played on a shadow of every byte. Whatever the shadow finds wrong, the checker
 * must refuse; what the shadow finds right it must accept.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "passes/models.h"

#include <stdlib.h>
#include <string.h>

static uint32_t draws;

static uint32_t draw(uint32_t below) {
  uint32_t out[4];
  iso_rng(11, ISO_RNG_TEST, 2, draws++, out);
  return out[0] % below;
}

/* ---- the oracle ---- */

/* One byte of memory: which byte of which value it holds, and who touched it last. */
typedef struct shadow_byte {
  int32_t value, byte;
  int32_t reader, writer; /* stamps: epoch (barriers so far) and instruction + 1 */
} shadow_byte;

#define EPOCH   4096 /* stamps of one epoch */
#define SEVERAL 4095 /* more than one instruction */

typedef struct shadow {
  const iso_program *program;
  const iso_graph *graph;
  shadow_byte *space[ISO_SPACE_COUNT];
  int64_t bytes[ISO_SPACE_COUNT];
  bool started[256], rounded[256];
  int missing[256]; /* contributions to a parameter's gradient */
  int index, epoch;
} shadow;

/* Instruction + 1 of a stamp of this epoch, else 0. */
static int now(const shadow *s, int32_t stamp) {
  return stamp / EPOCH == s->epoch ? stamp % EPOCH : 0;
}

/* The byte that an instruction made when it made this byte of a value: through splits and concatenations. */
static void origin(const iso_graph *g, iso_id *value, int64_t *byte) {
  for (;;) {
    const iso_tensor *t = &g->tensors[*value];
    if (t->space == ISO_SPACE_GRAD && iso_graph_streams(g)) { /* all contributions are one value */
      for (int p = 0; p < g->parameter_count; p++) {
        if (g->parameters[p].offset == t->offset) *value = g->parameters[p].gradient;
      }
      return;
    }
    if (t->producer < 0) return;
    const iso_node *node = &g->nodes[t->producer];
    int64_t unit = (int64_t)iso_dtype_size(t->dtype);
    if (node->op != ISO_OP_SPLIT && node->op != ISO_OP_CONCAT) return;
    int64_t row = *byte / (t->shape[1] * unit), col = *byte % (t->shape[1] * unit);
    if (node->op == ISO_OP_SPLIT) {
      for (int i = 0; node->outputs[i] != *value; i++) col += g->tensors[node->outputs[i]].shape[1] * unit;
      *value = node->inputs[0];
    } else {
      int i = 0;
      for (; col >= g->tensors[node->inputs[i]].shape[1] * unit; i++) {
        col -= g->tensors[node->inputs[i]].shape[1] * unit;
      }
      *value = node->inputs[i];
    }
    *byte = row * g->tensors[*value].shape[1] * unit + col;
  }
}

typedef bool visit(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte);

/* Calls `each` for every byte of the operand; false at the first that does not please it or lies outside. */
static bool walk(shadow *s, const iso_operand *o, visit *each) {
  const iso_instruction *instruction = &s->program->instructions[s->index];
  int64_t unit = (int64_t)iso_dtype_size(o->dtype), rows = o->rank == 2 ? o->shape[0] : 1;
  int64_t cols = (o->rank == 2 ? o->shape[1] : o->shape[0]) * unit, first = 0;
  bool ranged = iso_op_has_attribute(instruction->op, ISO_ATTR_BEGIN) && o->space != ISO_SPACE_SCALAR;
  if (ranged && o->space != ISO_SPACE_TRANSIENT) {
    int64_t begin = (int64_t)instruction->attributes[ISO_ATTR_BEGIN],
            end = (int64_t)instruction->attributes[ISO_ATTR_END];
    int64_t grain = o->space == ISO_SPACE_SQUARES ? 65536 : 1;
    first = begin / grain * unit;
    cols = (end + grain - 1) / grain * unit;
  }
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t col = first; col < cols; col++) {
      int64_t at = o->offset + row * o->ld * unit + col;
      if (at < 0 || at >= s->bytes[o->space]) return false;
      if (!each(s, o, &s->space[o->space][at], row * cols + col)) return false;
    }
  }
  return true;
}

static bool holds(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte) {
  iso_id value = o->value;
  origin(s->graph, &value, &byte);
  return at->value == value && at->byte == byte;
}

static bool at_home(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte) {
  iso_id value = o->value;
  origin(s->graph, &value, &byte);
  const iso_tensor *t = &s->graph->tensors[value];
  int64_t unit = (int64_t)iso_dtype_size(t->dtype);
  return at - s->space[o->space] == (iso_space_is_flat(t->space) ? t->offset * unit : t->offset) + byte;
}

static bool no_race_read(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte) {
  int reader = now(s, at->reader), writer = now(s, at->writer), me = s->index + 1;
  if (writer != 0 && writer != me) return false;
  at->reader = s->epoch * EPOCH + (reader == 0 || reader == me ? me : SEVERAL);
  return true;
}

static bool no_race_write(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte) {
  int reader = now(s, at->reader), writer = now(s, at->writer), me = s->index + 1;
  if ((writer != 0 && writer != me) || (reader != 0 && reader != me)) return false;
  at->writer = s->epoch * EPOCH + me;
  return true;
}

static bool put(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte) {
  iso_id value = o->value;
  if (value >= 0) origin(s->graph, &value, &byte);
  at->value = value;
  at->byte = (int32_t)byte;
  return true;
}

/* Not read by this instruction itself. */
static bool untouched(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte) {
  int reader = now(s, at->reader);
  return reader != s->index + 1 && reader != SEVERAL;
}

static bool tracked(iso_space space) {
  return space == ISO_SPACE_TRANSIENT || space == ISO_SPACE_OUTPUT || space == ISO_SPACE_REDUCED ||
         space == ISO_SPACE_SQUARES || space == ISO_SPACE_SCALAR;
}

static bool overlaps_exactly(const iso_operand *a, const iso_operand *b) {
  return a->space == b->space && a->offset == b->offset && a->ld == b->ld && a->dtype == b->dtype;
}

/* Writes of the instruction: not over its own reads unless in place, no two to one byte. */
static bool play_write(shadow *s, const iso_instruction *in, const iso_operand *o, int index) {
  int flags = iso_op_get(in->op)->flags;
  bool inplace = index == 0 && (((flags & ISO_OP_FLAG_INPLACE) != 0 && overlaps_exactly(o, &in->inputs[0])) ||
                                ((flags & ISO_OP_FLAG_INPLACE1) != 0 && overlaps_exactly(o, &in->inputs[1])));
  if (!inplace) {
    if (!walk(s, o, untouched)) return false;
  } else { /* the other inputs must be elsewhere */
    for (int i = 0; i < in->input_count; i++) {
      const iso_operand *other = &in->inputs[i];
      if (!other->present || overlaps_exactly(o, other) || other->space != o->space) continue;
      int64_t unit = (int64_t)iso_dtype_size(o->dtype), width = o->shape[1] * unit;
      int64_t other_unit = (int64_t)iso_dtype_size(other->dtype);
      int64_t other_rows = other->rank == 2 ? other->shape[0] : 1;
      int64_t other_width = (other->rank == 2 ? other->shape[1] : other->shape[0]) * other_unit;
      for (int64_t r = 0; r < o->shape[0]; r++) {
        for (int64_t q = 0; q < other_rows; q++) {
          int64_t a = o->offset + r * o->ld * unit, b = other->offset + q * other->ld * other_unit;
          if (a < b + other_width && b < a + width) return false;
        }
      }
    }
  }
  return true;
}

static bool no_double(shadow *s, const iso_operand *o, shadow_byte *at, int64_t byte) {
  return now(s, at->writer) != s->index + 1;
}

static bool play(shadow *s, int index) {
  const iso_instruction *in = &s->program->instructions[index];
  s->index = index;
  s->epoch += in->barrier;
  int written = iso_op_get(in->op)->flags / ISO_OP_FLAG_WRITES0;
  for (int i = 0; i < in->input_count; i++) {
    const iso_operand *o = &in->inputs[i];
    if (!o->present) continue;
    for (int p = 0; in->op == ISO_OP_GRAD_ROUND_PART && p < s->graph->parameter_count; p++) {
      if (s->graph->parameters[p].gradient != o->value) continue;
      if (s->missing[p] > 0 || s->rounded[p]) return false;
      s->rounded[p] = true;
    }
    if (tracked(o->space) ? !walk(s, o, holds) : !walk(s, o, at_home)) return false;
    if (o->space == ISO_SPACE_OUTPUT && !walk(s, o, at_home)) return false;
    if (!walk(s, o, (written >> i & 1) != 0 ? no_race_write : no_race_read)) return false;
    for (int p = 0; o->space == ISO_SPACE_GRAD && p < s->graph->parameter_count; p++) {
      if (!s->started[p]) return false;
    }
  }
  bool fresh[256] = {false}, gradient = false;
  for (int i = 0; i <= in->output_count; i++) {
    const iso_operand *o = i < in->output_count ? &in->outputs[i] : &in->scratch;
    if (!o->present) continue;
    if (!play_write(s, in, o, i) || !walk(s, o, no_double) || !walk(s, o, no_race_write)) return false;
    if (o->space != ISO_SPACE_TRANSIENT && !walk(s, o, at_home)) return false;
    if (o->value < 0 || s->graph->tensors[o->value].space != ISO_SPACE_GRAD) {
      walk(s, o, put);
      continue;
    }
    gradient = true;
    if (o->space == ISO_SPACE_TRANSIENT) {
      if (in->accumulate == ISO_ACCUMULATE_ALWAYS && !walk(s, o, holds)) return false;
      walk(s, o, put);
    }
    for (int p = 0; p < s->graph->parameter_count; p++) {
      if (s->graph->parameters[p].offset != s->graph->tensors[o->value].offset) continue;
      s->missing[p]--;
      if (in->accumulate != (s->started[p] ? ISO_ACCUMULATE_ALWAYS : ISO_ACCUMULATE_MICRO)) return false;
      fresh[p] = true;
    }
  }
  for (int p = 0; p < 256; p++) s->started[p] = s->started[p] || fresh[p];
  return gradient || in->accumulate == ISO_ACCUMULATE_NEVER;
}

static bool sound(const iso_program *program) {
  shadow s = {.program = program, .graph = program->graph};
  bool good = true;
  for (int space = 0; space < ISO_SPACE_COUNT; space++) {
    s.bytes[space] = iso_program_space_bytes(program, (iso_space)space);
    s.space[space] = calloc((size_t)s.bytes[space] + 1, sizeof(shadow_byte));
    for (int64_t i = 0; i < s.bytes[space]; i++) s.space[space][i].value = -2;
  }
  for (int n = 0; n < s.graph->node_count; n++) {
    const iso_node *node = &s.graph->nodes[n];
    for (int k = 0; node->op != ISO_OP_ADD && k < node->output_count; k++) {
      const iso_tensor *t = node->outputs[k] >= 0 ? &s.graph->tensors[node->outputs[k]] : NULL;
      for (int p = 0; t != NULL && t->space == ISO_SPACE_GRAD && p < s.graph->parameter_count; p++) {
        s.missing[p] += s.graph->parameters[p].offset == t->offset;
      }
    }
  }
  for (int phase = 0; phase < ISO_PHASE_COUNT && good; phase++) {
    s.epoch++;
    for (int i = program->phase_begin[phase]; i < program->phase_begin[phase + 1] && good; i++) good = play(&s, i);
    s.index = 0; /* an instruction without a range */
    for (iso_id id = 0; phase == 0 && good && id < s.graph->tensor_count; id++) {
      const iso_tensor *t = &s.graph->tensors[id];
      if (t->space != ISO_SPACE_OUTPUT || t->producer < 0) continue;
      iso_operand o = {.space = t->space, .offset = t->offset, .dtype = t->dtype, .rank = t->rank, .value = id};
      memcpy(o.shape, t->shape, sizeof o.shape);
      o.ld = t->shape[t->rank - 1];
      good = walk(&s, &o, holds);
    }
  }
  for (int space = 0; space < ISO_SPACE_COUNT; space++) free(s.space[space]);
  return good;
}

/* ---- programs ---- */

/* Compiles with workspace cut to 128 bytes, so that tensors, not workspace, fill the little arena. */
static iso_program *compile_small(iso_arena *arena, bool gpt2, int mode, iso_dtype compute, bool stream) {
  const shape s = {.layers = 1,
                   .width = 16,
                   .inner = 32,
                   .heads = 2,
                   .kv_heads = gpt2 ? 2 : 1,
                   .vocabulary = 10,
                   .batch = mode == MODE_CACHED ? 1 : 2,
                   .sequence = 3,
                   .tied = true,
                   .qk_norm = true,
                   .segments = true};
  models_status = ISO_OK;
  iso_graph *g = gpt2 ? build_gpt2(arena, &s, mode) : build_llama(arena, &s, mode);
  iso_program *p = NULL;
  assert_int_equal(models_status, ISO_OK);
  if (mode == MODE_LOSS) assert_int_equal(iso_pass_autodiff(g), ISO_OK);
  assert_int_equal(iso_pass_simplify(g), ISO_OK);
  assert_int_equal(iso_pass_precision(g, compute), ISO_OK);
  if (mode == MODE_LOSS)
    assert_int_equal(iso_pass_update(g, compute, 0, stream ? ISO_ROUND_STREAM : ISO_ROUND_LAST), ISO_OK);
  assert_int_equal(iso_pass_schedule(g), ISO_OK);
  assert_int_equal(iso_pass_lower(g, 2, &p), ISO_OK);
  for (int i = 0; i < p->instruction_count; i++) {
    iso_operand *scratch = &p->instructions[i].scratch;
    if (!scratch->present) continue;
    scratch->bytes = scratch->ld = scratch->shape[0] = 128;
    p->buffers[scratch->buffer].bytes = 128;
  }
  assert_int_equal(iso_pass_memplan(p), ISO_OK);
  assert_int_equal(iso_pass_barriers(p), ISO_OK);
  return p;
}

/* The operand number k of the whole program's present ones that lie in the arena or not, by reservoir choice. */
static iso_operand *random_operand(iso_program *p) {
  for (;;) {
    iso_instruction *in = &p->instructions[draw((uint32_t)p->instruction_count)];
    uint32_t k = draw((uint32_t)(in->input_count + in->output_count + 1));
    iso_operand *o = k < (uint32_t)in->input_count ? &in->inputs[k] : &in->outputs[k - (uint32_t)in->input_count];
    if (k == (uint32_t)(in->input_count + in->output_count)) o = &in->scratch;
    if (o->present && (o->space == ISO_SPACE_TRANSIENT || draw(8) == 0)) return o;
  }
}

static void damage(iso_program *p) {
  int micro = p->phase_begin[1];
  switch (draw(5)) {
  case 0:
  case 1: {
    static const int64_t steps[] = {-256, -192, -128, -96, -64, -32, -16, -4, 4, 16, 32, 64, 96, 128, 192, 256};
    random_operand(p)->offset += steps[draw(ISO_COUNT(steps))];
    break;
  }
  case 2: {
    int i = (int)draw((uint32_t)p->instruction_count);
    while (!p->instructions[i].barrier) i = (int)draw((uint32_t)p->instruction_count);
    p->instructions[i].barrier = false;
    break;
  }
  case 3: {
    int i = (int)draw((uint32_t)micro - 1), j = draw(2) == 0 ? i + 1 : (int)draw((uint32_t)micro);
    iso_instruction first = p->instructions[i];
    p->instructions[i] = p->instructions[j];
    p->instructions[j] = first;
    if (draw(2) == 0) p->instructions[i].barrier = p->instructions[j].barrier = true;
    break;
  }
  default: {
    iso_instruction *in = &p->instructions[draw((uint32_t)micro)];
    if (in->accumulate == ISO_ACCUMULATE_NEVER) { /* move it together: another buffer's place */
      iso_operand *a = random_operand(p), *b = random_operand(p);
      a->offset = b->offset;
    } else {
      in->accumulate = (iso_accumulate)draw(3);
    }
  }
  }
}

static void damage_is_found(void **state) {
  int real = 0, harmless = 0;
  iso_log_quiet(true);
  for (int variant = 0; variant < 12; variant++) {
    iso_arena *arena = iso_arena_create();
    int mode = variant % 4 == 3 && variant < 8 ? MODE_CACHED : MODE_LOSS;
    iso_dtype compute = (variant & 4) != 0 || variant >= 10 ? ISO_BF16 : ISO_F32;
    iso_program *p = compile_small(arena, (variant & 1) != 0, mode, compute, variant >= 8);
    if (iso_program_check(p) != ISO_OK) fail_msg("%s", iso_last_error());
    assert_true(sound(p));
    size_t bytes = (size_t)p->instruction_count * sizeof *p->instructions;
    iso_instruction *good = malloc(bytes);
    memcpy(good, p->instructions, bytes);
    for (int round = 0; round < 250; round++) {
      damage(p);
      bool right = sound(p);
      iso_status status = iso_program_check(p);
      if (right != (status == ISO_OK)) {
        fail_msg("variant %d round %d: the shadow says %s, the checker %s", variant, round, right ? "right" : "wrong",
                 status == ISO_OK ? "right" : iso_last_error());
      }
      if (status != ISO_OK) assert_int_equal(status, ISO_ERR_CHECK);
      real += !right;
      harmless += right;
      memcpy(p->instructions, good, bytes);
    }
    free(good);
    iso_arena_destroy(&arena);
  }
  iso_log_quiet(false);
  printf("%d real conflicts found, %d harmless changes accepted\n", real, harmless);
  assert_true(real >= 1000);
  assert_true(harmless >= 50);
}

/* Damage that is not about bytes: each is refused with its cause. */
static void senseless_programs_are_refused(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_program *p = compile_small(arena, true, MODE_LOSS, ISO_F32, false);
  iso_instruction *first = &p->instructions[2], good = *first, *last = &p->instructions[p->instruction_count - 1];
  assert_int_equal(first->op, ISO_OP_ADD);
  iso_log_quiet(true);
  first->inputs[0].shape[1] = 8;
  assert_int_equal(iso_program_check(p), ISO_ERR_CHECK);
  assert_non_null(strstr(iso_last_error(), "type or shape differ from its tensor's"));
  *first = good;
  first->inputs[0].ld = 4;
  assert_int_equal(iso_program_check(p), ISO_ERR_CHECK);
  assert_non_null(strstr(iso_last_error(), "rows overlap"));
  *first = good;
  first->op = ISO_OP_SWIGLU;
  assert_int_equal(iso_program_check(p), ISO_ERR_CHECK);
  assert_non_null(strstr(iso_last_error(), "is not made like this in the graph"));
  *first = good;
  first->input_count = 99;
  assert_int_equal(iso_program_check(p), ISO_ERR_CHECK);
  assert_non_null(strstr(iso_last_error(), "impossible number of operands"));
  *first = good;
  first->outputs[0].offset = p->arena_bytes;
  assert_int_equal(iso_program_check(p), ISO_ERR_CHECK);
  assert_non_null(strstr(iso_last_error(), "lies outside transient"));
  *first = good;
  assert_int_equal(last->op, ISO_OP_ADAMW);
  last->attributes[ISO_ATTR_END] -= 8;
  assert_int_equal(iso_program_check(p), ISO_ERR_CHECK);
  assert_non_null(strstr(iso_last_error(), "elements"));
  last->attributes[ISO_ATTR_END] += 8;
  assert_int_equal(iso_program_check(p), ISO_OK);
  iso_log_quiet(false);
  iso_arena_destroy(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(damage_is_found),
      cmocka_unit_test(senseless_programs_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
