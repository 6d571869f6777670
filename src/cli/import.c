/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach import: loads a Hugging Face folder as training would (`model.init_from`), says what it holds, and keeps
 * nothing.
 */
#include <string.h>

#include "cli/cli.h"

typedef struct folder {
  const char *path;
  iso_arena *arena;
  iso_model_config model;
  const iso_graph *graph;
  iso_safetensors *weights;
  iso_string dtypes;  /* "F32", or several */
  int64_t vocabulary; /* of the tokenizer; -1: none */
} folder;

static void list_dtypes(folder *f) {
  for (size_t i = 0; i < iso_safetensors_count(f->weights); i++) {
    const char *dtype = iso_safetensors_at(f->weights, i)->dtype;
    if (f->dtypes.data && strstr(f->dtypes.data, dtype)) continue;
    iso_string_printf(&f->dtypes, "%s%s", f->dtypes.length ? "+" : "", dtype);
  }
}

static iso_status check_weights(folder *f) {
  const size_t bytes = (size_t)f->graph->flat_elements * sizeof(float);
  float *master = iso_slab_alloc(bytes, "model weights");
  if (!master) return ISO_ERR_MEMORY;
  const iso_status status = iso_model_import(&f->model, f->graph, f->path, master);
  iso_slab_free(master, bytes);
  return status;
}

static iso_status check_tokenizer(folder *f) {
  f->vocabulary = -1;
  if (!iso_tokenizer_is_in(f->path)) return ISO_OK;
  iso_tokenizer *tokenizer;
  ISO_TRY(iso_tokenizer_open(f->path, "", &tokenizer));
  f->vocabulary = iso_tokenizer_vocabulary(tokenizer);
  iso_tokenizer_close(&tokenizer);
  if (f->vocabulary <= f->model.vocabulary) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH, "%s: the tokenizer has %lld ids but the model's vocab_size is %lld", f->path,
                  (long long)f->vocabulary, (long long)f->model.vocabulary);
}

static iso_status load(folder *f) {
  if (iso_path_exists(iso_path_join(f->arena, f->path, "run.json")))
    return iso_fail(ISO_ERR_NOT_FOUND,
                    "'%s' is a run folder, not a Hugging Face folder; isotach export %s DIR makes one of it", f->path,
                    f->path);
  const iso_build_options build = {ISO_BUILD_LOGITS, 1, 1, 0, false};
  iso_graph *graph;
  ISO_TRY(iso_model_config_read(f->path, &f->model));
  ISO_TRY(iso_model_build(&f->model, &build, f->arena, &graph));
  f->graph = graph;
  ISO_TRY(iso_safetensors_open(f->path, &f->weights));
  list_dtypes(f);
  ISO_TRY(check_weights(f));
  return check_tokenizer(f);
}

static iso_status print(const folder *f, bool json) {
  const iso_model_config *m = &f->model;
  if (!json) {
    printf("%s: %s, %lld parameters, %s\n", f->path, iso_architecture_name(m->architecture),
           (long long)f->graph->flat_elements, f->dtypes.data ? f->dtypes.data : "no tensors");
    printf("layers %lld, width %lld, inner %lld, heads %lld, key-value heads %lld, head width %lld, positions %lld, "
           "%s\n",
           (long long)m->layers, (long long)m->width, (long long)m->inner, (long long)m->heads, (long long)m->kv_heads,
           (long long)m->head_dim, (long long)m->positions, m->tied ? "tied" : "untied");
    printf("vocabulary %lld, tokenizer ", (long long)m->vocabulary);
    if (f->vocabulary < 0) {
      printf("none\n");
    } else {
      printf("%lld ids\n", (long long)f->vocabulary);
    }
    return ISO_OK;
  }
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "folder", f->path);
  iso_json_put_text(&out, "architecture", iso_architecture_name(m->architecture));
  iso_json_put_int(&out, "parameters", f->graph->flat_elements);
  iso_json_put_text(&out, "dtype", f->dtypes.data ? f->dtypes.data : "");
  iso_json_put_int(&out, "layers", m->layers);
  iso_json_put_int(&out, "width", m->width);
  iso_json_put_int(&out, "inner", m->inner);
  iso_json_put_int(&out, "heads", m->heads);
  iso_json_put_int(&out, "kv_heads", m->kv_heads);
  iso_json_put_int(&out, "head_dim", m->head_dim);
  iso_json_put_int(&out, "positions", m->positions);
  iso_json_put_int(&out, "vocabulary", m->vocabulary);
  iso_json_put_bool(&out, "tied", m->tied);
  iso_json_put_bool(&out, "tokenizer", f->vocabulary >= 0);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

iso_status iso_verb_import(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  folder f = {.path = args->words[0], .arena = iso_arena_create()};
  iso_status status = f.arena ? load(&f) : iso_fail(ISO_ERR_MEMORY, "import: no memory");
  if (status == ISO_OK) status = print(&f, json);
  iso_safetensors_close(&f.weights);
  iso_model_config_fini(&f.model);
  iso_string_fini(&f.dtypes);
  iso_arena_destroy(&f.arena);
  return status;
}
