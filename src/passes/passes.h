/* SPDX-License-Identifier: Apache-2.0
 *
 * passes: from the graph that a model builder made to a program that exec runs. pipeline.c is the order and nothing
 * else.
 */
#ifndef ISO_PASSES_H
#define ISO_PASSES_H

#include "graph/graph.h"
#include "kernels/kernels.h"

/* Rows of the fusion table that are passes; bit 1 << row of `fusion_off` switches one off. */
typedef enum iso_fusion {
  ISO_FUSION_JOINT,         /* linears of one input as one product */
  ISO_FUSION_ADD_NORM,      /* residual add and the norm of the sum */
  ISO_FUSION_NORM_GRAD_ADD, /* a norm's gradient and the add of the skip gradient */
  ISO_FUSION_GRAD_CAST,     /* the sum of that, also in the compute type */
  ISO_FUSION_SWIGLU,        /* gate|up and SwiGLU */
  ISO_FUSION_ROPE,          /* q|k|v or q, k, with biases, norms of heads and RoPE */
  ISO_FUSION_GELU,          /* a linear and GELU */
  ISO_FUSION_COUNT
} iso_fusion;
#define ISO_FUSION_ALL ((1u << ISO_FUSION_COUNT) - 1)

/* Runs each of the programs a few times on data of no meaning, by turns, within about `budget_s`; the seconds of the
 * fastest run of each, all 0 where the budget is too small to tell. */
typedef iso_status (*iso_race)(const void *context, iso_program *const *programs, int count, double budget_s,
                               double *seconds);

typedef struct iso_compile_options {
  bool train;         /* autodiff and update */
  iso_dtype compute;  /* F32 or BF16 */
  iso_dtype gradient; /* type of the reduced gradient */
  int threads;        /* workspace is planned for these */
  const iso_kernels *kernels;
  const char *dump_after; /* name of a pass, or NULL: print the graph (or program) after it to `dump` */
  FILE *dump;
  int64_t bucket_elements; /* of the update; a multiple of ISO_NORM_BLOCK; 0: 4,194,304 */
  bool stream; /* steps have one worker and one micro-batch: round each gradient as it is complete, keep no flat sums */
  bool early;  /* unless streamed: the last pass of a step rounds each gradient as it is complete, not the update all */
  int64_t arena_limit;      /* bytes of the arena to stay within by making activations again; 0: keep all activations */
  unsigned fusion_off;      /* fusions that are switched off, by bit; 0: all on, ISO_FUSION_ALL: none */
  unsigned fusion_measure;  /* rows that may stay unfused where `race` finds that faster; bits are as unfused */
  iso_race race;            /* NULL: nothing is measured */
  const void *race_context; /* for `race` */
  const struct iso_graph *choices_of; /* a graph whose choices hold here, too; NULL: none */
} iso_compile_options;

/* ---- pipeline.c ---- */
/* Runs all passes with a verifier between them; `graph` is changed in place. The program lives in the graph's arena. */
iso_status iso_compile(iso_graph *graph, const iso_compile_options *options, iso_program **program) ISO_MUST_CHECK;
/* Names of the passes in order, NULL-terminated (for --dump-after and its help). */
const char *const *iso_pass_names(void);

/* ---- gradients.c: the rule table of autodiff ---- */
/* One node of a gradient. Operands are words: i<k> input, o<k> output of the forward node, d<k> gradient of its output
 * k, g<k> gradient of its input k. With ISO_OP_NONE the (single) input is itself the gradient of every output word. */
typedef struct iso_gradient_step {
  iso_op op;
  const char *inputs, *outputs;
} iso_gradient_step;
#define ISO_MAX_GRADIENT_STEPS 4
/* The steps of an op's rule; 0: it has none. */
int iso_gradient_steps(iso_op op, const iso_gradient_step **steps);
/* Ops that have no rule by nature: effects, gradients, ops of inference programs, ops that appear after autodiff. */
bool iso_gradient_exempt(iso_op op);
/* Value of an attribute of a step's node. */
double iso_gradient_attribute(const iso_graph *graph, const iso_node *forward, iso_attribute key);

/* ---- views.c: which tensors share storage ---- */
/* Where a tensor's bytes are: columns of another one's, or its own (parent -1). */
typedef struct iso_place {
  iso_id parent;
  int64_t column; /* first column in the parent */
} iso_place;
/* The tensor whose storage it is in the end, and the first column there. */
iso_id iso_place_root(const iso_place *places, iso_id id, int64_t *column);
/* Fills one place a tensor: views of split and concat, then in-place outputs. */
iso_status iso_views_resolve(const iso_graph *graph, iso_place *places) ISO_MUST_CHECK;

/* True if the graph's gradients are rounded one by one, so that GRAD tensors live in the arena for a while. */
bool iso_graph_streams(const iso_graph *graph); /* lower.c */
/* Index of the parameter that begins at this element. */
int iso_parameter_at(const iso_graph *graph, int64_t element); /* lower.c */

/* ---- switches.c: which rows apply, from words ---- */
typedef struct iso_fusion_switches {
  unsigned off;     /* rows switched off */
  unsigned measure; /* rows that may stay unfused where that is faster: same bits, mode auto, not named */
} iso_fusion_switches;
/* True if the row's fused form gives the bits of the unfused one. */
bool iso_fusion_keeps_bits(int index);
/* "auto -add_norm": a mode (auto, on, off; auto when left out), then -name or +name. CONFIG errors begin with `where`.
 */
iso_status iso_fusion_switches_read(const char *words, const char *where, iso_fusion_switches *out) ISO_MUST_CHECK;
/* The same in as far as it decides bits: "auto", "off" where no row that decides bits applies, or "auto -name ...". */
void iso_fusion_switches_bits(const iso_fusion_switches *switches, iso_string *out);

/* ---- fuse.c: the fusion table ---- */
#define ISO_FUSION_SAME_BITS "same as unfused"
typedef struct iso_fusion_info {
  const char *name, *pattern, *form; /* what is looked for, what stands there afterwards */
  const char *bits;                  /* ISO_FUSION_SAME_BITS, or what chooses the form */
  iso_op built_in;                   /* an op that is the fused form from the start; ISO_OP_NONE: a pass makes it */
} iso_fusion_info;
/* Row `index`; those below ISO_FUSION_COUNT are passes. NULL: there are no more. */
const iso_fusion_info *iso_fusion_get(int index);
/* Why a place stays unfused although it could be fused: the row is switched off, or places with a tensor like this one
 * in their middle were measured to be faster so. NULL: fuse it. */
const char *iso_fusion_declined(iso_graph *graph, iso_fusion fusion, iso_id like); /* choose.c */
/* "bf16[1024,768]" */
void iso_choice_print(const iso_choice *choice, iso_string *out);
/* What was measured, in one line: "add_norm 1.41x at f32[1024,768], ... of unfused: all are kept". */
void iso_choices_print(const iso_graph *graph, iso_string *out);
/* One JSON object in one line: seconds of measuring, places of each row, what was measured. */
void iso_fusion_record(const iso_graph *graph, iso_string *out);
/* Notes that a place was fused (cause NULL) or why not. */
iso_status iso_fusion_note(iso_graph *graph, iso_fusion fusion, const char *place, const char *cause) ISO_MUST_CHECK;
/* Places of a row in a compiled graph: fused, or all of them. */
int iso_fusion_places(const iso_graph *graph, int index, bool fused);
/* "23 of 24 places fused: ..." in one line without its end. */
void iso_fusion_verdict(const iso_graph *graph, iso_string *out);
/* The table with places and causes. */
void iso_fusion_print(const iso_graph *graph, iso_string *out);

/* What the fuse pass knows of its graph. */
typedef struct iso_fuser {
  iso_graph *graph;
  int *readers;   /* per tensor */
  bool *gradient; /* per tensor: of a parameter */
  bool *gone;     /* per node: another one does its work */
} iso_fuser;
/* products.c: fuses the row kernel at node n, or that which the product or split at n goes to, with the product. */
iso_status iso_fuse_products(iso_fuser *fuser, int n) ISO_MUST_CHECK;

/* ---- one file per pass ---- */
iso_status iso_pass_join(iso_graph *graph, unsigned fusion_off) ISO_MUST_CHECK; /* before autodiff: joint products */
/* Measures forms of equal bits (rows of options->fusion_measure) and leaves the choices in the graph. */
iso_status iso_pass_choose(iso_graph *graph, const iso_compile_options *options) ISO_MUST_CHECK;
iso_status iso_pass_fuse(iso_graph *graph, unsigned fusion_off) ISO_MUST_CHECK; /* after update: forms of equal bits */
iso_status iso_pass_autodiff(iso_graph *graph) ISO_MUST_CHECK; /* autodiff.c + gradients.c: rule table */
iso_status iso_pass_simplify(iso_graph *graph) ISO_MUST_CHECK; /* common subexpressions, dead nodes and outputs */
iso_status iso_pass_precision(iso_graph *graph, iso_dtype compute) ISO_MUST_CHECK;
typedef enum iso_rounding {
  ISO_ROUND_LAST,   /* by the update, which ranks reduce before */
  ISO_ROUND_STREAM, /* each gradient as it is complete; they are never all there at once */
  ISO_ROUND_EARLY,  /* the same in the last pass of a step; sums of the passes are kept */
} iso_rounding;
/* Reduction, clip, optimizer. */
iso_status iso_pass_update(iso_graph *graph, iso_dtype gradient, int64_t bucket_elements,
                           iso_rounding rounding) ISO_MUST_CHECK;
/* Makes activations again in the backward pass, the cheapest and as few as bring the arena within `limit` bytes (0: no
 * limit) when the graph is fused without `fusion_off`. */
iso_status iso_pass_recompute(iso_graph *graph, int threads, unsigned fusion_off, int64_t limit) ISO_MUST_CHECK;
iso_status iso_pass_schedule(iso_graph *graph) ISO_MUST_CHECK;
iso_status iso_pass_lower(iso_graph *graph, int threads,
                          iso_program **program) ISO_MUST_CHECK; /* views, in-place, workspace, accumulation */
iso_status iso_pass_memplan(iso_program *program) ISO_MUST_CHECK;
/* Marks the instructions before which the team meets: those that conflict in memory with one since the last meeting. */
iso_status iso_pass_barriers(iso_program *program) ISO_MUST_CHECK;
/* Rederives lifetimes from the program's operands alone and proves that no two live values overlap, that every read is
 * of the value last written there, that conflicting instructions are separated by a barrier, and that everything lies
 * inside its space. */
iso_status iso_program_check(const iso_program *program) ISO_MUST_CHECK;

/* ---- memory.c ---- */
/* Instruction with the largest sum of live buffers, and that sum, each rounded up to the arena's alignment. */
int iso_program_peak(const iso_program *program, int64_t *bytes);
/* Table of spaces, the peak instruction, the largest tensors live there; last line "arena: <bytes> bytes, live at peak
 * <bytes> bytes, use <percent>%". */
void iso_memory_print(const iso_program *program, iso_string *out);
/* recompute.c: what is made again, the bytes saved and the operations added. */
void iso_recompute_print(const iso_graph *graph, iso_string *out);

#endif
