/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach generate: continues a text, printing it as it comes.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { DEFAULT_TOKENS = 128 };

typedef struct generation {
  iso_generate_options options;
  bool json, ids, greedy;
  int64_t threads, seed;
  const char *prompt;
  int32_t *tokens; /* prompt, then what was generated */
  int64_t count, made;
  double seconds;
  iso_string text; /* of what was generated */
  bool first;
} generation;

static void on_token(void *context, int32_t token, const char *bytes, size_t length) {
  generation *g = context;
  if (g->json) {
    iso_string_append(&g->text, bytes, length);
  } else if (g->ids) {
    printf("%s%d", g->first ? "" : " ", (int)token);
    fflush(stdout);
  } else {
    fwrite(bytes, 1, length, stdout);
    fflush(stdout);
  }
  g->first = false;
}

/* Prompt and new tokens must fit the model's positions: said before anything is printed. Unless the number of tokens
 * was asked for, it is what fits. */
static iso_status limit_tokens(generation *g, const iso_lm *lm, int64_t prompt) {
  const int64_t room = lm->model.positions - prompt;
  if (g->options.max_tokens < 0 && room > 0) g->options.max_tokens = room < DEFAULT_TOKENS ? room : DEFAULT_TOKENS;
  if (g->options.max_tokens >= 0 && g->options.max_tokens <= room) return ISO_OK;
  return iso_fail(ISO_ERR_USAGE,
                  "generate: a prompt of %lld tokens and %lld more do not fit the %lld positions of '%s'; shorten the "
                  "prompt or lower --max-tokens",
                  (long long)prompt, (long long)(g->options.max_tokens < 0 ? DEFAULT_TOKENS : g->options.max_tokens),
                  (long long)lm->model.positions, lm->path);
}

/* Ids of the prompt; an empty one is the beginning of a document. */
static iso_status encode_prompt(generation *g, const iso_lm *lm) {
  if (!lm->tokenizer)
    return iso_fail(ISO_ERR_NOT_FOUND, "%s: has no tokenizer.json or tokenizer.model, which generation needs",
                    lm->path);
  iso_encoder *encoder = iso_encoder_create(lm->tokenizer);
  if (!encoder) return iso_fail(ISO_ERR_MEMORY, "generate: no memory to encode the prompt");
  const int32_t *ids = NULL;
  size_t count = 0;
  const int32_t start = (int32_t)iso_tokenizer_eos(lm->tokenizer);
  iso_status status = iso_encode(encoder, g->prompt, strlen(g->prompt), true, false, &ids, &count);
  if (status == ISO_OK && count == 0 && start >= 0) {
    ids = &start;
    count = 1;
  }
  if (status == ISO_OK) status = limit_tokens(g, lm, (int64_t)count);
  if (status == ISO_OK) {
    g->tokens = calloc(count + (size_t)g->options.max_tokens + 1, sizeof *g->tokens);
    if (g->tokens) {
      if (count) memcpy(g->tokens, ids, count * sizeof *ids);
      g->count = (int64_t)count;
    } else {
      status = iso_fail(ISO_ERR_MEMORY, "generate: no memory for %lld tokens", (long long)g->options.max_tokens);
    }
  }
  iso_encoder_destroy(&encoder);
  return status;
}

static void put_ids(iso_string *out, const char *key, const int32_t *ids, int64_t count) {
  iso_json_open(out, key, '[');
  for (int64_t i = 0; i < count; i++) iso_json_put_int(out, NULL, ids[i]);
  iso_json_shut(out, ']');
}

static iso_status print_json(generation *g) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "prompt", g->prompt);
  put_ids(&out, "prompt_ids", g->tokens, g->count);
  put_ids(&out, "ids", g->tokens + g->count, g->made);
  iso_json_put_text(&out, "text", g->text.data ? g->text.data : "");
  iso_json_put_real(&out, "seconds", g->seconds);
  iso_json_put_real(&out, "tokens_per_s", g->seconds > 0 ? (double)g->made / g->seconds : 0);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status generate(generation *g, const iso_lm *lm) {
  ISO_TRY(encode_prompt(g, lm));
  if (!g->json && !g->ids) printf("%s", g->prompt);
  g->first = true;
  const double began = iso_clock_s();
  ISO_TRY(iso_generate(lm, g->tokens, g->count, &g->options, g->tokens + g->count, &g->made));
  g->seconds = iso_clock_s() - began;
  if (g->json) return print_json(g);
  printf("\n");
  return ISO_OK;
}

iso_status iso_verb_generate(iso_args *args) {
  generation g = {
      .options = {
          .sampling = {.temperature = 0.8, .top_p = 1}, .max_tokens = -1, .compute = ISO_F32, .stop_at_eos = true}};
  iso_sampling *sampling = &g.options.sampling;
  const iso_flag flags[] = {
      {"max-tokens", ISO_FLAG_INT, &g.options.max_tokens, "tokens to add at most (128, or what fits the model)", 0,
       1e9},
      {"temperature", ISO_FLAG_REAL, &sampling->temperature, "0: always the likeliest token (0.8)", 0, 1e6},
      {"top-k", ISO_FLAG_INT, &sampling->top_k, "only among the K likeliest; 0: off (0)", 0, 1e9},
      {"top-p", ISO_FLAG_REAL, &sampling->top_p, "only among the likeliest that together have this mass (1)", 0, 1},
      {"seed", ISO_FLAG_INT, &g.seed, "of the draws (0)", 0, 9e18},
      {"greedy", ISO_FLAG_BOOL, &g.greedy, "the same as --temperature 0", 0, 0},
      {"dtype", ISO_FLAG_DTYPE, &g.options.compute, "compute type (float32)", 0, 0},
      {"threads", ISO_FLAG_INT, &g.threads, "0: all cores (0)", 0, 1024},
      {"ids", ISO_FLAG_BOOL, &g.ids, "print the new tokens' ids instead of text", 0, 0},
      {"json", ISO_FLAG_BOOL, &g.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 2, 2));
  if (args->help) return ISO_OK;
  g.prompt = args->words[1];
  if (g.greedy) sampling->temperature = 0;
  if (sampling->top_p <= 0) return iso_fail(ISO_ERR_USAGE, "generate: --top-p must be above 0");
  sampling->seed = (uint64_t)g.seed;
  g.options.on_token = on_token;
  g.options.context = &g;
  iso_lm lm;
  ISO_TRY(iso_lm_open(args->words[0], (int)g.threads, &lm));
  const iso_status status = generate(&g, &lm);
  free(g.tokens);
  iso_string_fini(&g.text);
  iso_lm_close(&lm);
  return status;
}
