/* SPDX-License-Identifier: Apache-2.0
 *
 * graph: the step as data. Tensors and nodes (ops.def), their text form, and the program they are lowered to.
 *
 * Invariants
 *  1. Static single assignment: a transient tensor has one producer, which stands before its consumers in node order.
 *  2. Every node satisfies its row in ops.def: operand count, shapes (shape.c), attributes.
 *  3. The text form is complete: iso_graph_parse(iso_graph_print(g)) prints the same text again.
 *  4. One arena per compilation holds graph and program; nothing in it is freed singly.
 */
#ifndef ISO_GRAPH_H
#define ISO_GRAPH_H

#include "base/base.h"

#define ISO_MAX_RANK    4
#define ISO_MAX_INPUTS  9
#define ISO_MAX_OUTPUTS 5

typedef enum iso_op {
  ISO_OP_NONE,
#define OP(NAME, text, inputs, outputs, attributes, flags) ISO_OP_##NAME,
#include "graph/ops.def"
#undef OP
  ISO_OP_COUNT
} iso_op;

typedef enum iso_attribute {
#define ATTRIBUTE(NAME, text, kind) ISO_ATTR_##NAME,
#include "graph/attributes.def"
#undef ATTRIBUTE
  ISO_ATTR_COUNT
} iso_attribute;

/* WRITES0 << i: input i is state that the op reads and writes. */
enum {
  ISO_OP_FLAG_INPLACE = 1,
  ISO_OP_FLAG_EFFECT = 2,
  ISO_OP_FLAG_VIEW = 4,
  ISO_OP_FLAG_INPLACE1 = 8,
  ISO_OP_FLAG_WRITES0 = 256
};

/* Elements of the flat state per entry of "squares" (= ISO_NORM_BLOCK of the kernels), and length of "scalars". */
#define ISO_SQUARES_BLOCK 65536
#define ISO_SCALAR_COUNT  16

/* Where a tensor lives. */
typedef enum iso_space {
  ISO_SPACE_TRANSIENT, /* the planned arena: activations, gradients, workspace */
  ISO_SPACE_INPUT,     /* the batch slot */
  ISO_SPACE_CONST,     /* tables made at compile time (rope) */
  ISO_SPACE_MASTER,    /* flat float32 parameters */
  ISO_SPACE_WEIGHT,    /* flat compute copy of the parameters */
  ISO_SPACE_MOMENT1,
  ISO_SPACE_MOMENT2,
  ISO_SPACE_GRAD,    /* flat float32 sums of the current leaf */
  ISO_SPACE_REDUCED, /* flat reduced gradient: what the optimizer consumes */
  ISO_SPACE_SQUARES, /* double per norm block */
  ISO_SPACE_SCALAR,  /* the step's scalars */
  ISO_SPACE_CACHE,   /* key/value caches (inference) */
  ISO_SPACE_OUTPUT,  /* losses or logits the caller reads after the program ran */
  ISO_SPACE_COUNT
} iso_space;
const char *iso_space_name(iso_space space);

typedef int iso_id; /* index of a tensor; -1: none */

typedef struct iso_tensor {
  const char *name; /* unique; transients are named "%<number>" unless named by the builder */
  iso_dtype dtype;
  int rank;
  int64_t shape[ISO_MAX_RANK];
  iso_space space;
  int producer;   /* node index, -1: none */
  int64_t offset; /* MASTER, WEIGHT, GRAD...: element offset in the flat state; CONST, CACHE, INPUT, OUTPUT: byte offset
                     in its space */
  const void *content; /* CONST: its values (arena) */
  /* parameters (MASTER) only */
  int parameter; /* index in iso_graph.parameters, else -1 */
} iso_tensor;

typedef enum iso_init { ISO_INIT_NORMAL, ISO_INIT_ZERO, ISO_INIT_ONE, ISO_INIT_COUNT } iso_init;
typedef enum iso_decay_class {
  ISO_DECAY_MATRIX,
  ISO_DECAY_EMBEDDING,
  ISO_DECAY_NORM,
  ISO_DECAY_BIAS,
  ISO_DECAY_COUNT
} iso_decay_class;
const char *iso_init_name(iso_init init);
const char *iso_decay_class_name(iso_decay_class decay_class);

/* A trained tensor, in flat order. */
typedef struct iso_parameter {
  const char *name; /* as in the Hugging Face file */
  int rank;
  int64_t shape[ISO_MAX_RANK];
  int64_t elements, offset; /* in the flat state; offset of the next = offset + elements */
  iso_init init;
  double init_std;
  iso_decay_class decay_class;
  iso_id tensor;   /* MASTER tensor */
  iso_id gradient; /* set by autodiff; -1 before */
} iso_parameter;

typedef struct iso_node {
  iso_op op;
  int input_count, output_count;
  iso_id inputs[ISO_MAX_INPUTS];   /* -1: optional and absent */
  iso_id outputs[ISO_MAX_OUTPUTS]; /* -1: not wanted (only where ops.def says) */
  double attributes[ISO_ATTR_COUNT];
  bool has_attribute[ISO_ATTR_COUNT];
  int phase; /* iso_phase */
} iso_node;

typedef enum iso_phase { ISO_PHASE_MICRO, ISO_PHASE_UPDATE, ISO_PHASE_COUNT } iso_phase;

/* What became of one place where a fusion could apply (passes/fuse.c); not part of the text form. */
typedef struct iso_remark {
  int fusion;        /* row of the fusion table */
  const char *place; /* name of a tensor there */
  const char *cause; /* why it was not fused; NULL: it was */
} iso_remark;

/* Whether fusions of one row stay unfused where the tensor in their middle has this type and shape (passes/choose.c).
 */
typedef struct iso_choice {
  int fusion; /* row of the fusion table */
  iso_dtype dtype;
  int rank;
  int64_t shape[ISO_MAX_RANK];
  double fused_s, unfused_s; /* of one such place; 0: not measured */
  const char *cause;         /* why they stay unfused; NULL: they are fused */
} iso_choice;

typedef struct iso_graph {
  iso_arena *arena; /* not owned */
  const char *name; /* "train", "evaluate", "infer" */
  iso_tensor *tensors;
  int tensor_count, tensor_capacity;
  iso_node *nodes; /* in execution order */
  int node_count, node_capacity;
  iso_parameter *parameters;
  int parameter_count, parameter_capacity;
  int64_t flat_elements;                /* sum of the parameters' elements */
  int64_t space_bytes[ISO_SPACE_COUNT]; /* INPUT, CONST, CACHE, OUTPUT: bytes given out so far */
  iso_dtype compute;                    /* set by the precision pass; F32 before */
  iso_dtype gradient;                   /* of the reduced gradient; set by the update pass; F32 before */
  bool keeps_sums; /* gradients that are rounded one by one are summed in flat memory before; set by the update pass */
  int64_t tokens;                       /* rows N of one micro-batch */
  int next_number;                      /* of the next unnamed transient */
  int64_t saved_bytes;                  /* of the arena, by making activations again; set by the recompute pass */
  iso_remark *notes;                    /* left by the fusion passes, in the order of the places */
  int note_count, note_capacity;
  iso_choice *choices; /* each form that the fusion passes met, or were told of before */
  int choice_count, choice_capacity;
  double choose_s;     /* seconds that measuring them took */
  unsigned fusion_off; /* fusions that are switched off, as the caller of iso_compile said */
} iso_graph;

/* ---- op.c: the table at run time ----------------------------------------------------------------- */

typedef struct iso_op_info {
  const char *text, *inputs, *outputs, *attributes;
  int flags;
} iso_op_info;
const iso_op_info *iso_op_get(iso_op op);
iso_op iso_op_find(const char *text, size_t length); /* ISO_OP_NONE: unknown */
const char *iso_attribute_text(iso_attribute attribute);
char iso_attribute_kind(iso_attribute attribute);
int iso_attribute_find(const char *text, size_t length); /* -1: unknown */
int iso_op_input_count(iso_op op);                       /* operands of the row, optional ones too */
int iso_op_output_count(iso_op op);
bool iso_op_input_optional(iso_op op, int index);
bool iso_op_output_optional(iso_op op, int index);
bool iso_op_has_attribute(iso_op op, iso_attribute key); /* listed in its row */
/* REDUCED, SCALAR...: state that nodes overwrite; TRANSIENT, OUTPUT and GRAD tensors have one producer instead. */
bool iso_space_is_state(iso_space space);
/* MASTER, WEIGHT, MOMENT1, ...: offsets count elements of the flat state. */
bool iso_space_is_flat(iso_space space);

/* ---- builder.c ------------------------------------------------------------------------------------ */

iso_graph *iso_graph_new(iso_arena *arena, const char *name);
/* Inputs and constants. The name must be unique. */
iso_id iso_graph_input(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape);
iso_id iso_graph_const(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape,
                       const void *content);
iso_id iso_graph_cache(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape);
/* Adds a parameter at the end of the flat state. */
iso_id iso_graph_parameter(iso_graph *graph, const char *name, int rank, const int64_t *shape, iso_init init,
                           double init_std, iso_decay_class decay_class);
/* Marks a transient as an output that the caller reads (moves it to ISO_SPACE_OUTPUT). */
void iso_graph_output(iso_graph *graph, iso_id tensor);
/* Names a tensor: letters, digits and "_.:/-", unique (the verifier checks). Use it for outputs ("losses", "logits").
 */
void iso_graph_rename(iso_graph *graph, iso_id tensor, const char *name);
/* Tensor of that name, or -1. */
iso_id iso_graph_find(const iso_graph *graph, const char *name);

typedef struct iso_attr {
  iso_attribute key;
  double value;
} iso_attr;
/* Appends a node in the phase MICRO; shapes and types of all its outputs, optional ones too (simplify drops those that
 * nobody reads), come from shape inference. Hands back the first output_count of them (-1: absent); outputs may be NULL
 * with output_count 0. Missing optional inputs are -1 or beyond input_count; attributes not given are 0. Returns
 * INTERNAL with a line naming op and operand when the node breaks its row: the graph is then unusable. */
iso_status iso_graph_node(iso_graph *graph, iso_op op, const iso_id *inputs, int input_count,
                          const iso_attr *attributes, int attribute_count, iso_id *outputs,
                          int output_count) ISO_MUST_CHECK;
/* Same, with output tensors that exist already (parser and passes): checks shapes, sets their producer. */
iso_status iso_graph_node_into(iso_graph *graph, const iso_node *node) ISO_MUST_CHECK;
/* New transient tensor without producer yet. name NULL: "%<number>". */
iso_id iso_graph_tensor(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape,
                        iso_space space);
double iso_node_attribute(const iso_node *node, iso_attribute key); /* 0 when absent */
/* A graph of its own over the same parameters and contents; no notes, the same choices. NULL: no memory. */
iso_graph *iso_graph_copy(iso_arena *arena, const iso_graph *graph);
int64_t iso_tensor_elements(const iso_tensor *tensor);
int64_t iso_tensor_bytes(const iso_tensor *tensor);

/* ---- shape.c, verify.c ----------------------------------------------------------------------------- */

/* Output shapes and types (by ops.def's letters, under graph->compute) of a node from its inputs and attributes. rank
 * -1 in outputs: this form of the op has no such output. */
iso_status iso_shape_infer(const iso_graph *graph, const iso_node *node,
                           iso_tensor outputs[ISO_MAX_OUTPUTS]) ISO_MUST_CHECK;
/* Same, silent: false with the cause in `cause`. */
bool iso_shape_explain(const iso_graph *graph, const iso_node *node, iso_tensor outputs[ISO_MAX_OUTPUTS], char *cause,
                       size_t cause_bytes);
/* All invariants; one line naming the node, operand and cause. `typed`: element types are checked against ops.def's
 * letters (after the precision pass). */
iso_status iso_graph_verify(const iso_graph *graph, bool typed) ISO_MUST_CHECK;
/* Same, silent: the cause (valid until this thread's next call) or NULL. */
const char *iso_graph_explain(const iso_graph *graph, bool typed);

/* ---- print.c --------------------------------------------------------------------------------------- */

/* Text form, deterministic (grammar: docs/ir.md). */
void iso_graph_print(const iso_graph *graph, iso_string *out);
/* " {eps=1e-05, form=1}" of the attributes present, or nothing. */
void iso_attributes_print(const double *attributes, const bool *present, iso_string *out);

/* ---- parse.c --------------------------------------------------------------------------------------- */

/* Parses it back. FORMAT with line and column. Contents of constants are not in the text (shape only). */
iso_status iso_graph_parse(iso_arena *arena, const char *text, size_t length, const char *where,
                           iso_graph **out) ISO_MUST_CHECK;

/* ---- cost.c ---------------------------------------------------------------------------------------- */

/* Floating-point operations and bytes moved by one execution of the node. */
void iso_node_cost(const iso_graph *graph, const iso_node *node, int64_t *flop, int64_t *bytes);

/* ---- program.c: what exec runs --------------------------------------------------------------------- */

typedef struct iso_operand {
  iso_space space;
  int64_t offset; /* bytes from the space's base */
  iso_dtype dtype;
  int rank;
  int64_t shape[ISO_MAX_RANK];
  int64_t ld;    /* elements between rows (last dimension contiguous) */
  int64_t bytes; /* extent in memory from offset to its last element's end */
  iso_id value;  /* tensor of the graph, for printing and for the checker; -1: workspace */
  int buffer;    /* TRANSIENT: index in iso_program.buffers; else -1 */
  bool present;
} iso_operand;

typedef enum iso_accumulate {
  ISO_ACCUMULATE_NEVER, /* overwrite */
  ISO_ACCUMULATE_MICRO, /* overwrite in a leaf's first micro-batch, add in later ones */
  ISO_ACCUMULATE_ALWAYS /* add (second contribution to a tied weight) */
} iso_accumulate;

typedef struct iso_instruction {
  iso_op op;
  int phase;
  bool barrier; /* the team meets before it */
  int input_count, output_count;
  iso_operand inputs[ISO_MAX_INPUTS], outputs[ISO_MAX_OUTPUTS];
  iso_operand scratch; /* present when the kernel needs workspace */
  double attributes[ISO_ATTR_COUNT];
  iso_accumulate accumulate; /* of outputs in ISO_SPACE_GRAD */
  int64_t flop, bytes;
} iso_instruction;

/* A piece of the transient arena with one lifetime: a tensor with its views and in-place successors, or workspace. */
typedef struct iso_buffer {
  int64_t bytes, offset; /* offset: set by memplan */
  int first, last;       /* instructions that touch it first and last; first > last: none */
  iso_id value;          /* the tensor it is laid out for; -1: workspace */
} iso_buffer;

typedef struct iso_program {
  const iso_graph *graph;
  iso_instruction *instructions; /* MICRO first, then UPDATE */
  int instruction_count;
  int phase_begin[ISO_PHASE_COUNT + 1];
  iso_buffer *buffers;
  int buffer_count;
  int64_t arena_bytes;     /* transient arena */
  int64_t live_peak_bytes; /* largest sum of live tensors (and workspace) at one instruction */
  int threads;             /* workspace was planned for this many */
} iso_program;

void iso_program_print(const iso_program *program, iso_string *out);

/* Bytes that a space needs to run the program (TRANSIENT: the arena); 0: the program does not use it. */
int64_t iso_program_space_bytes(const iso_program *program, iso_space space);

/* Elements [*first, *last) of [begin, end) that make up whole norm blocks of a state of `flat` elements (its last block
 * may be short); *first >= *last: there are none. */
void iso_whole_blocks(int64_t flat, int64_t begin, int64_t end, int64_t *first, int64_t *last);

/* The bytes of an operand that an instruction touches: rows of row_bytes, ld_bytes apart. For flat operands of ops with
 * begin and end, that range only (the operand itself is the whole array). */
typedef struct iso_region {
  iso_space space;
  int64_t offset, rows, row_bytes, ld_bytes;
} iso_region;
iso_region iso_operand_region(const iso_instruction *instruction, const iso_operand *operand);

#endif
