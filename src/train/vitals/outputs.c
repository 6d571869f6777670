/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run shows of itself while it goes on, as `vitals` of its config asks for: each step is put in once, and goes
 * from there to the endpoint (exposition.c), the dashboard (dashboard.c) and TensorBoard (events.c).
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/vitals/vitals.h"

/* Gradients are looked at in the first step of a start and whenever the step is a multiple of this. */
enum { GRADIENTS_EVERY = 50 };
/* The state of the signs is put into words each SAY_S, as long as somebody has asked within LOOKED_S. */
static const double SAY_S = 1, LOOKED_S = 5, SHARE = 1000;

struct iso_outputs {
  const iso_run *run;
  iso_outputs_head head;
  iso_live *live;                  /* NULL: nothing is served */
  iso_server *metrics, *dashboard; /* NULL: not asked for; so for the others */
  iso_flow *flow;                  /* this and what follows: of the dashboard */
  iso_profile *profile;
  iso_timeline *timeline;
  pthread_mutex_t lock; /* of `health`, which is the signs' state as it was said last */
  iso_string health, next;
  _Atomic double looked_s; /* when somebody asked last; 0: nobody did */
  double said_s;
  iso_events *events;
  iso_gradients *gradients;
  int64_t taken; /* steps of this start */
};

static bool answer_metrics(void *context, const char *path, const char **type, iso_string *body) {
  const iso_outputs *outputs = context;
  if (strcmp(path, "/metrics") != 0) return false;
  iso_live *now = iso_live_copy(outputs->live);
  if (!now) return false;
  *type = "text/plain; version=0.0.4; charset=utf-8";
  iso_exposition_print(&outputs->head, now, body);
  iso_live_destroy(&now);
  return true;
}

static bool answer_data(iso_outputs *outputs, iso_string *body) {
  iso_string health = {0};
  iso_live *now = iso_live_copy(outputs->live);
  if (!now) return false;
  atomic_store_explicit(&outputs->looked_s, iso_clock_s(), memory_order_relaxed);
  (void)pthread_mutex_lock(&outputs->lock);
  if (outputs->health.length) iso_string_append(&health, outputs->health.data, outputs->health.length);
  (void)pthread_mutex_unlock(&outputs->lock);
  const iso_dashboard dashboard = {.head = &outputs->head,
                                   .live = now,
                                   .flow = outputs->flow,
                                   .timeline = outputs->timeline,
                                   .health = health.length ? health.data : NULL};
  iso_dashboard_data(&dashboard, body);
  iso_string_fini(&health);
  iso_live_destroy(&now);
  return true;
}

static bool answer_dashboard(void *context, const char *path, const char **type, iso_string *body) {
  iso_outputs *outputs = context;
  if (strcmp(path, "/") == 0) {
    *type = "text/html; charset=utf-8";
    iso_dashboard_page(&outputs->head, body);
    return true;
  }
  *type = "application/json";
  if (strcmp(path, "/data.json") == 0) return answer_data(outputs, body);
  if (strcmp(path, "/program.json") == 0) {
    iso_program_describe(&outputs->run->engine, body);
    return true;
  }
  if (strcmp(path, "/times.json") != 0) return answer_metrics(context, path, type, body);
  iso_profile_print(outputs->profile, body);
  return true;
}

static void fill_head(const iso_run *run, iso_outputs_head *head) {
  *head = (iso_outputs_head){.run = run->config.run,
                             .uuid = run->uuid,
                             .tier = iso_tier_name(iso_device_kernels(run->device)->tier),
                             .steps = run->config.steps,
                             .parameters = iso_model_parameters(&run->model),
                             .ranks = run->options.ranks ? iso_ranks_plan_get(run->options.ranks)->count : 1,
                             .threads = iso_device_threads(run->device)};
}

static void tell(const iso_run *run, const iso_server *server, const char *what, const char *path) {
  char url[256];
  if (!server || run->options.quiet) return;
  iso_server_url(server, path, url);
  printf("# %s: %s\n", what, url);
  (void)fflush(stdout);
}

static iso_status listen_metrics(iso_outputs *outputs, const iso_config *config, const char *where) {
  char address[32];
  if (outputs->metrics) return ISO_OK;
  snprintf(address, sizeof address, "127.0.0.1:%lld", (long long)config->vitals.metrics_port);
  return iso_server_listen(address, where, &outputs->metrics);
}

static iso_status listen_dashboard(iso_outputs *outputs, const iso_config *config, const char *where) {
  return outputs->dashboard ? ISO_OK : iso_server_listen(config->vitals.dashboard, where, &outputs->dashboard);
}

/* What asks for a server, for errors. */
static const char *key_of(const iso_config *config, const char *key, char where[256]) {
  snprintf(where, 256, "%.200s: `vitals.%s`", config->source, key);
  return where;
}

static iso_status open_dashboard(iso_outputs *outputs, const iso_run *run, const iso_history *history) {
  char text[256];
  const char *where = key_of(&run->config, "dashboard", text);
  ISO_TRY(iso_flow_create(outputs->gradients, &outputs->flow));
  ISO_TRY(iso_profile_create(run, &outputs->profile));
  ISO_TRY(iso_timeline_create(run, history, &outputs->timeline));
  ISO_TRY(listen_dashboard(outputs, &run->config, where));
  ISO_TRY(iso_server_start(outputs->dashboard, where, answer_dashboard, outputs));
  tell(run, outputs->dashboard, "dashboard", "/");
  return ISO_OK;
}

static iso_status open_metrics(iso_outputs *outputs, const iso_run *run) {
  char text[256];
  const char *where = key_of(&run->config, "metrics_port", text);
  ISO_TRY(listen_metrics(outputs, &run->config, where));
  ISO_TRY(iso_server_start(outputs->metrics, where, answer_metrics, outputs));
  tell(run, outputs->metrics, "metrics for Prometheus", "/metrics");
  return ISO_OK;
}

static iso_status open_servers(iso_outputs *outputs, const iso_run *run) {
  iso_history history; /* of the starts before */
  iso_status status = iso_history_read(run->config.run, &history);
  if (status == ISO_OK) status = iso_live_create(run->config.run, &history, &outputs->live);
  if (status == ISO_OK && run->config.vitals.metrics_port) status = open_metrics(outputs, run);
  if (status == ISO_OK && run->config.vitals.dashboard[0]) status = open_dashboard(outputs, run, &history);
  iso_history_fini(&history);
  return status;
}

static double unix_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The config as TensorBoard shows text, which is Markdown: indented, so as it is. */
static iso_status open_events(iso_outputs *outputs, const iso_run *run) {
  iso_string yaml = {0}, text = {0};
  iso_config_print(&run->config, &yaml);
  for (const char *at = yaml.data; at && *at;) {
    const size_t line = strcspn(at, "\n");
    iso_string_printf(&text, "    %.*s\n", (int)line, at);
    at += line + (at[line] == '\n');
  }
  iso_status status = iso_string_failed(&yaml) || iso_string_failed(&text) ? ISO_ERR_MEMORY : ISO_OK;
  if (status == ISO_OK)
    status = iso_events_open(run->config.run, run->at.step + 1, unix_time(), text.data, &outputs->events);
  iso_string_fini(&yaml);
  iso_string_fini(&text);
  return status;
}

static bool asks(const iso_config *config) {
  return config->vitals.dashboard[0] || config->vitals.metrics_port || config->vitals.tensorboard;
}

static iso_status create(const iso_config *config, iso_outputs **out) {
  iso_outputs *outputs = calloc(1, sizeof *outputs);
  *out = outputs;
  if (!outputs) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for `vitals`", config->run);
  (void)pthread_mutex_init(&outputs->lock, NULL);
  return ISO_OK;
}

iso_status iso_outputs_reserve(const iso_config *config, iso_outputs **out) {
  char text[256];
  *out = NULL;
  if (!asks(config) || iso_path_exists(config->run)) return ISO_OK;
  iso_status status = create(config, out);
  if (status == ISO_OK && config->vitals.metrics_port)
    status = listen_metrics(*out, config, key_of(config, "metrics_port", text));
  if (status == ISO_OK && config->vitals.dashboard[0])
    status = listen_dashboard(*out, config, key_of(config, "dashboard", text));
  if (status != ISO_OK) iso_outputs_close(out);
  return status;
}

iso_status iso_outputs_open(const iso_run *run, iso_outputs **address) {
  const bool page = run->config.vitals.dashboard[0], served = page || run->config.vitals.metrics_port;
  const bool tensorboard = run->config.vitals.tensorboard;
  if (!asks(&run->config)) return ISO_OK;
  if (!*address) ISO_TRY(create(&run->config, address));
  iso_outputs *outputs = *address;
  outputs->run = run;
  fill_head(run, &outputs->head);
  iso_status status = page || tensorboard ? iso_gradients_create(&run->state, &outputs->gradients) : ISO_OK;
  if (status == ISO_OK && served) status = open_servers(outputs, run);
  if (status == ISO_OK && tensorboard) status = open_events(outputs, run);
  if (status != ISO_OK) iso_outputs_close(address);
  return status;
}

void iso_outputs_begin(iso_outputs *outputs, bool traced) {
  if (outputs && outputs->profile) iso_profile_begin(outputs->profile, traced);
}

void iso_outputs_step(iso_outputs *outputs, const iso_step_metrics *step) {
  if (!outputs) return;
  const double time = unix_time();
  if (outputs->profile) iso_profile_end(outputs->profile, step->step);
  if (outputs->timeline) iso_timeline_step(outputs->timeline, outputs->run, time);
  if (outputs->live) iso_live_step(outputs->live, step, time);
  if (outputs->events) iso_events_step(outputs->events, step, time);
  const bool due = outputs->taken++ == 0 || step->step % GRADIENTS_EVERY == 0;
  if (!outputs->gradients || !due || step->refused) return;
  const iso_flat *flat = &outputs->run->engine.flat;
  iso_gradients_measure(outputs->gradients, flat->reduced, flat->options.gradient);
  if (outputs->flow) iso_flow_add(outputs->flow, step->step);
  if (outputs->events) iso_events_gradients(outputs->events, outputs->gradients, step->step, time);
}

/* Quantiles of many ranks take a while: never more than a thousandth of the time. */
void iso_outputs_health(iso_outputs *outputs, const iso_health *health) {
  if (!outputs || !outputs->dashboard) return;
  const double now = iso_clock_s(), looked_s = atomic_load_explicit(&outputs->looked_s, memory_order_relaxed);
  if (!(looked_s > 0) || now - looked_s > LOOKED_S || now < outputs->said_s) return;
  outputs->next.length = 0;
  iso_health_look(health, &outputs->next);
  const double spent = iso_clock_s() - now;
  outputs->said_s = now + (spent * SHARE > SAY_S ? spent * SHARE : SAY_S);
  if (iso_string_failed(&outputs->next)) return;
  (void)pthread_mutex_lock(&outputs->lock);
  const iso_string before = outputs->health;
  outputs->health = outputs->next;
  outputs->next = before;
  (void)pthread_mutex_unlock(&outputs->lock);
}

void iso_outputs_close(iso_outputs **outputs) {
  if (!outputs || !*outputs) return;
  iso_server_close(&(*outputs)->metrics);
  iso_server_close(&(*outputs)->dashboard);
  iso_flow_destroy(&(*outputs)->flow);
  iso_profile_destroy(&(*outputs)->profile);
  iso_timeline_destroy(&(*outputs)->timeline);
  iso_string_fini(&(*outputs)->health);
  iso_string_fini(&(*outputs)->next);
  (void)pthread_mutex_destroy(&(*outputs)->lock);
  iso_live_destroy(&(*outputs)->live);
  iso_events_close(&(*outputs)->events);
  iso_gradients_destroy(&(*outputs)->gradients);
  free(*outputs);
  *outputs = NULL;
}
