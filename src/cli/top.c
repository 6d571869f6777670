/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach top: shows a run on a terminal once a second, or prints it once. The one file that knows the terminal, which
 * is ncurses's: what a terminal can do, which bytes a key sends, and what of a screen has changed differ from one to
 * the other.
 *
 * Invariants
 *  1. However it ends, the terminal is as it was: a signal is only noted by its handler, and takes effect after that.
 *  2. Signals arrive in ppoll() and nowhere else: none comes between looking at what was noted and waiting.
 *  3. Standard output is a terminal that can address its cursor, or gets plain text once.
 */
#include <curses.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/top.h"

enum {
  PLAIN_WIDTH = 100, /* of bars and curves */
  PLAIN_COLUMNS = 2000,
  MOST_CELLS = 1000, /* rows, columns */
  INTERVAL_MS = 1000,
  ESCAPE = 27,
  END_OF_INPUT = 4
};

static volatile sig_atomic_t end_signal, stop_signal, redraw;

static void note_end(int number) {
  end_signal = number;
}

static void note_stop(int number) {
  stop_signal = number;
}

/* Another size, or it was stopped and goes on: what the screen shows, and how the terminal is set, may have changed. */
static void note_redraw(int number) {
  redraw = number;
}

static double wall_clock_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- once ---- */

static iso_status print_once(const iso_top *top, bool json, bool utf8) {
  iso_string out = {0};
  if (json) {
    iso_top_print_json(top, &out);
    return iso_json_print(&out);
  }
  iso_top_view view = {.sort = ISO_PARTS, .width = PLAIN_WIDTH};
  iso_grid grid;
  ISO_TRY(iso_grid_init(&grid, iso_top_rows(top, &view), PLAIN_COLUMNS, utf8));
  iso_top_draw(top, &view, &grid);
  iso_grid_print(&grid, &out);
  iso_grid_fini(&grid);
  return iso_text_print(&out);
}

/* ---- the screen ---- */

typedef struct screen {
  SCREEN *curses;
  bool utf8, colours;
  sigset_t kept; /* signals that were blocked before */
} screen;

static const int end_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/* Unless whoever started this ignores it. */
static void catch_signal(int number, void (*note)(int), sigset_t *caught) {
  struct sigaction action = {.sa_handler = note}, before;
  if (sigaction(number, NULL, &before) != 0 || before.sa_handler == SIG_IGN) return;
  (void)sigaction(number, &action, NULL);
  sigaddset(caught, number);
}

static void catch_signals(screen *s) {
  sigset_t caught;
  sigemptyset(&caught);
  for (size_t i = 0; i < ISO_COUNT(end_signals); i++) catch_signal(end_signals[i], note_end, &caught);
  catch_signal(SIGTSTP, note_stop, &caught);
  catch_signal(SIGWINCH, note_redraw, &caught);
  catch_signal(SIGCONT, note_redraw, &caught);
  (void)pthread_sigmask(SIG_BLOCK, &caught, &s->kept);
}

/* What Ctrl-Z asks for: the shell has the terminal as it was, until this goes on. */
static void stop(void) {
  sigset_t one;
  struct sigaction plain = {.sa_handler = SIG_DFL}, own;
  stop_signal = 0;
  (void)endwin();
  sigemptyset(&one);
  sigaddset(&one, SIGTSTP);
  (void)sigaction(SIGTSTP, &plain, &own);
  (void)raise(SIGTSTP);
  (void)pthread_sigmask(SIG_UNBLOCK, &one, NULL); /* it stops here */
  (void)pthread_sigmask(SIG_BLOCK, &one, NULL);
  (void)sigaction(SIGTSTP, &own, NULL);
  redraw = 1;
}

static void open_inks(screen *s) {
  static const short colours[ISO_INKS] = {COLOR_GREEN, COLOR_YELLOW, COLOR_MAGENTA, COLOR_BLUE,   COLOR_CYAN,
                                          -1,          -1,           COLOR_GREEN,   COLOR_YELLOW, COLOR_RED};
  s->colours = has_colors() && start_color() == OK && use_default_colors() == OK;
  for (short i = 0; s->colours && i < ISO_INKS; i++) (void)init_pair((short)(i + 1), colours[i], -1);
}

static void screen_close(screen *s) {
  (void)endwin();
  delscreen(s->curses);
}

/* false: this terminal cannot do it. */
static bool screen_open(screen *s) {
  s->curses = newterm(NULL, stdout, stdin);
  if (!s->curses) return false;
  const char *move = tigetstr("cup");
  if (!move || move == (const char *)-1) {
    screen_close(s);
    return false;
  }
  open_inks(s);
  (void)cbreak();
  (void)noecho();
  (void)nonl();
  (void)keypad(stdscr, TRUE);
  (void)nodelay(stdscr, TRUE);
  (void)set_escdelay(25);
  (void)curs_set(0);
  return true;
}

static attr_t attribute_of(iso_ink ink) {
  return ink == ISO_INK_HEAD || ink >= ISO_INK_WARN ? A_BOLD : A_NORMAL;
}

static void show(const screen *s, const iso_grid *grid) {
  for (int row = 0; row < grid->rows; row++)
    for (int column = 0; column < grid->columns; column++) {
      const iso_cell *cell = &grid->cells[(size_t)row * (size_t)grid->columns + (size_t)column];
      const wchar_t text[2] = {(wchar_t)cell->text, 0};
      cchar_t one;
      (void)setcchar(&one, text, attribute_of(cell->ink), s->colours ? (short)(cell->ink + 1) : 0, NULL);
      (void)mvadd_wch(row, column, &one);
    }
  (void)refresh();
}

static iso_status draw(const screen *s, const iso_top *top, iso_top_view *view) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0 && size.ws_row <= MOST_CELLS &&
      size.ws_col <= MOST_CELLS && (size.ws_row != LINES || size.ws_col != COLS))
    (void)resizeterm(size.ws_row, size.ws_col);
  if (redraw) {
    redraw = 0;
    (void)reset_prog_mode();
    (void)clearok(curscr, TRUE);
  }
  iso_grid grid;
  ISO_TRY(iso_grid_init(&grid, LINES, COLS, s->utf8));
  iso_top_draw(top, view, &grid);
  show(s, &grid);
  iso_grid_fini(&grid);
  return ISO_OK;
}

/* ---- keys ---- */

static void sort_by(iso_top_view *view, int part) {
  view->sort = part;
  view->first = 0;
}

static void scroll_key(iso_top_view *view, int key) {
  const int page = view->shown > 1 ? view->shown - 1 : 1;
  switch (key) {
  case KEY_DOWN:
  case 'j':
    view->first++;
    break;
  case KEY_UP:
  case 'k':
    view->first--;
    break;
  case KEY_NPAGE:
    view->first += page;
    break;
  case KEY_PPAGE:
    view->first -= page;
    break;
  case KEY_HOME:
    view->first = 0;
    break;
  case KEY_END:
    view->first = ISO_TOP_RANKS;
    break;
  }
}

/* false: quit. */
static bool press(iso_top_view *view, int key) {
  static const struct {
    char key;
    int part;
  } sorts[] = {{'n', ISO_PARTS},       {'w', ISO_PART_WALL},    {'c', ISO_PART_COMPUTE}, {'d', ISO_PART_DATA},
               {'r', ISO_PART_REDUCE}, {'s', ISO_PART_STORAGE}, {'o', ISO_PART_OTHER}};
  if (key == 'q' || key == 'Q' || key == END_OF_INPUT) return false;
  if (key == 'h' || key == '?') view->help = !view->help;
  if (key == ESCAPE) view->help = false;
  for (size_t i = 0; i < ISO_COUNT(sorts); i++)
    if (key == sorts[i].key) sort_by(view, sorts[i].part);
  scroll_key(view, key);
  return true;
}

/* Waits for keys, signals, or the time; *quit. */
static void wait_for(const screen *s, iso_top_view *view, double until_s, bool *quit) {
  struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
  const double left_s = until_s - iso_clock_s();
  const struct timespec left = {.tv_nsec = left_s > 0 ? (long)(left_s * 999999999) : 0};
  const int ready = ppoll(&input, 1, &left, &s->kept);
  *quit = end_signal || (ready < 0 && errno != EINTR) || (ready > 0 && !(input.revents & POLLIN));
  if (ready <= 0 || *quit) return;
  *quit = (input.revents & (POLLHUP | POLLERR)) != 0; /* the terminal is gone */
  for (int key; !*quit && (key = getch()) != ERR;) *quit = !press(view, key);
}

static iso_status watch(const screen *s, iso_top *top) {
  iso_top_view view = {.sort = ISO_PARTS, .keys = true};
  double next_s = iso_clock_s();
  bool quit = false;
  iso_status status = ISO_OK;
  while (status == ISO_OK && !quit) {
    if (iso_clock_s() >= next_s) {
      next_s = iso_clock_s() + 1e-3 * INTERVAL_MS;
      status = iso_top_look(top, wall_clock_s());
    }
    if (status == ISO_OK) status = draw(s, top, &view);
    if (status == ISO_OK) wait_for(s, &view, next_s, &quit);
    if (stop_signal && !quit) stop();
  }
  return status;
}

/* A signal that ended it ends the process as it would have. */
static void die_of(int number) {
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

/* *shown false: this terminal cannot do it, nothing has happened. */
static iso_status show_on_terminal(iso_top *top, bool utf8, bool *shown) {
  screen s = {.utf8 = utf8};
  iso_status status = ISO_OK;
  catch_signals(&s);
  *shown = screen_open(&s);
  if (*shown) {
    const bool quiet = iso_log_quiet(true);
    status = watch(&s, top);
    screen_close(&s);
    iso_log_quiet(quiet);
  }
  (void)pthread_sigmask(SIG_SETMASK, &s.kept, NULL);
  if (end_signal) die_of(end_signal);
  return status == ISO_OK ? ISO_OK : iso_fail(status, "%s", iso_last_error());
}

/* ---- the verb ---- */

static iso_status run_top(iso_top *top, bool once, bool json) {
  bool shown = false;
  (void)setlocale(LC_CTYPE, "");
  const bool utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  ISO_TRY(iso_top_look(top, wall_clock_s()));
  if (!once && !json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) ISO_TRY(show_on_terminal(top, utf8, &shown));
  if (shown) return ISO_OK;
  return print_once(top, json, utf8);
}

iso_status iso_verb_top(iso_args *args) {
  bool once = false, json = false;
  const iso_flag flags[] = {{"once", ISO_FLAG_BOOL, &once,
                             "print it once, as plain text; so it is where output or input is no terminal", 0, 0},
                            {"json", ISO_FLAG_BOOL, &json, "print it once, as one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  const char *run = args->words[0];
  if (strncmp(run, "s3://", 5) == 0)
    return iso_fail(ISO_ERR_USAGE,
                    "top: '%s' is a target or mirror, which does not say how a run is; name the run folder", run);
  iso_top *top;
  ISO_TRY(iso_top_open(run, &top));
  const iso_status status = run_top(top, once, json);
  iso_top_close(&top);
  return status;
}
