/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run shows of itself while it goes on, as `vitals` of its config asks for: each step is put in once, and goes
 * from there to the endpoint (exposition.c), the dashboard (dashboard.c) and TensorBoard (events.c).
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/vitals/vitals.h"

/* Gradients are looked at in the first step of a start and whenever the step is a multiple of this. */
enum { GRADIENTS_EVERY = 50 };

struct iso_outputs {
  const iso_run *run;
  iso_outputs_head head;
  iso_live *live;                  /* NULL: nothing is served */
  iso_server *metrics, *dashboard; /* NULL: not asked for; so for the others */
  iso_flow *flow;
  iso_string memory; /* the plan */
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

static bool answer_dashboard(void *context, const char *path, const char **type, iso_string *body) {
  const iso_outputs *outputs = context;
  if (strcmp(path, "/") == 0) {
    *type = "text/html; charset=utf-8";
    iso_dashboard_page(&outputs->head, body);
    return true;
  }
  if (strcmp(path, "/data.json") != 0) return answer_metrics(context, path, type, body);
  iso_live *now = iso_live_copy(outputs->live);
  if (!now) return false;
  *type = "application/json";
  iso_dashboard_data(&outputs->head, now, outputs->flow, outputs->memory.data, body);
  iso_live_destroy(&now);
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

static iso_status open_servers(iso_outputs *outputs, const iso_run *run) {
  char address[32], where[256];
  ISO_TRY(iso_live_create(run->config.run, &outputs->live));
  if (run->config.vitals.metrics_port) {
    snprintf(address, sizeof address, "127.0.0.1:%lld", (long long)run->config.vitals.metrics_port);
    snprintf(where, sizeof where, "%.200s: `vitals.metrics_port`", run->config.source);
    ISO_TRY(iso_server_open(address, where, answer_metrics, outputs, &outputs->metrics));
    tell(run, outputs->metrics, "metrics for Prometheus", "/metrics");
  }
  if (run->config.vitals.dashboard[0]) {
    snprintf(where, sizeof where, "%.200s: `vitals.dashboard`", run->config.source);
    iso_engine_plan(&run->engine, &outputs->memory);
    if (iso_string_failed(&outputs->memory)) return ISO_ERR_MEMORY;
    ISO_TRY(iso_flow_create(outputs->gradients, &outputs->flow));
    ISO_TRY(iso_server_open(run->config.vitals.dashboard, where, answer_dashboard, outputs, &outputs->dashboard));
    tell(run, outputs->dashboard, "dashboard", "/");
  }
  return ISO_OK;
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

iso_status iso_outputs_open(const iso_run *run, iso_outputs **out) {
  *out = NULL;
  const bool page = run->config.vitals.dashboard[0], served = page || run->config.vitals.metrics_port;
  const bool tensorboard = run->config.vitals.tensorboard;
  if (!served && !tensorboard) return ISO_OK;
  iso_outputs *outputs = calloc(1, sizeof *outputs);
  *out = outputs;
  if (!outputs) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for `vitals`", run->config.run);
  outputs->run = run;
  fill_head(run, &outputs->head);
  iso_status status = page || tensorboard ? iso_gradients_create(&run->state, &outputs->gradients) : ISO_OK;
  if (status == ISO_OK && served) status = open_servers(outputs, run);
  if (status == ISO_OK && tensorboard) status = open_events(outputs, run);
  if (status != ISO_OK) iso_outputs_close(out);
  return status;
}

void iso_outputs_step(iso_outputs *outputs, const iso_step_metrics *step) {
  if (!outputs) return;
  const double time = unix_time();
  if (outputs->live) iso_live_step(outputs->live, step, time);
  if (outputs->events) iso_events_step(outputs->events, step, time);
  const bool due = outputs->taken++ == 0 || step->step % GRADIENTS_EVERY == 0;
  if (!outputs->gradients || !due || step->refused) return;
  const iso_flat *flat = &outputs->run->engine.flat;
  iso_gradients_measure(outputs->gradients, flat->reduced, flat->options.gradient);
  if (outputs->flow) iso_flow_add(outputs->flow, step->step);
  if (outputs->events) iso_events_gradients(outputs->events, outputs->gradients, step->step, time);
}

void iso_outputs_close(iso_outputs **outputs) {
  if (!*outputs) return;
  iso_server_close(&(*outputs)->metrics);
  iso_server_close(&(*outputs)->dashboard);
  iso_flow_destroy(&(*outputs)->flow);
  iso_string_fini(&(*outputs)->memory);
  iso_live_destroy(&(*outputs)->live);
  iso_events_close(&(*outputs)->events);
  iso_gradients_destroy(&(*outputs)->gradients);
  free(*outputs);
  *outputs = NULL;
}
