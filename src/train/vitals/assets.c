/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of pages/ as the binary holds them, and pages made of them. The assembler includes them as they are
 * (ISO_PAGES is their folder, from CMakeLists.txt), with a NUL behind each.
 *
 * A page is a template in which {{name}} stands for a text. Texts are put in as they are: what comes from outside is
 * made safe by its caller (iso_page_json, iso_page_text).
 */
#include <math.h>
#include <string.h>

#include "train/vitals/vitals.h"

__asm__(".pushsection .rodata\n"
        ".hidden iso_page_style\n.global iso_page_style\niso_page_style: .incbin \"" ISO_PAGES "/page.css\"\n.byte 0\n"
        ".hidden iso_page_charts\n.global iso_page_charts\niso_page_charts: .incbin \"" ISO_PAGES
        "/charts.js\"\n.byte 0\n"
        ".hidden iso_page_report\n.global iso_page_report\niso_page_report: .incbin \"" ISO_PAGES
        "/report.html\"\n.byte 0\n"
        ".hidden iso_page_report_script\n.global iso_page_report_script\niso_page_report_script: .incbin \"" ISO_PAGES
        "/report.js\"\n.byte 0\n"
        ".hidden iso_page_dashboard\n.global iso_page_dashboard\niso_page_dashboard: .incbin \"" ISO_PAGES
        "/dashboard.html\"\n.byte 0\n"
        ".hidden iso_page_dashboard_script\n.global iso_page_dashboard_script\niso_page_dashboard_script: .incbin "
        "\"" ISO_PAGES "/dashboard.js\"\n.byte 0\n"
        ".hidden iso_page_panels\n.global iso_page_panels\niso_page_panels: .incbin \"" ISO_PAGES
        "/panels.js\"\n.byte 0\n"
        ".hidden iso_page_program\n.global iso_page_program\niso_page_program: .incbin \"" ISO_PAGES
        "/program.js\"\n.byte 0\n"
        ".popsection");

static const iso_page_part *part_of(const iso_page_part *parts, size_t count, const char *name, size_t length) {
  for (size_t i = 0; i < count; i++)
    if (strlen(parts[i].name) == length && strncmp(parts[i].name, name, length) == 0) return &parts[i];
  return NULL;
}

void iso_page_fill(const char *template, const iso_page_part *parts, size_t count, iso_string *out) {
  const char *at = template;
  for (const char *open; (open = strstr(at, "{{"));) {
    const char *close = strstr(open, "}}");
    const iso_page_part *part = close ? part_of(parts, count, open + 2, (size_t)(close - open) - 2) : NULL;
    iso_string_append(out, at, (size_t)(open - at) + (part ? 0 : 2));
    at = part ? close + 2 : open + 2;
    if (part) iso_string_append(out, part->text, strlen(part->text));
  }
  iso_string_append(out, at, strlen(at));
}

void iso_json_text(iso_string *out, const char *name, const char *text) {
  iso_string_printf(out, "\"%s\": ", name);
  iso_json_quote(out, text, strlen(text));
}

void iso_page_json(const char *json, iso_string *out) {
  for (const char *at = json; *at;) {
    const size_t span = strcspn(at, "<");
    iso_string_append(out, at, span);
    at += span;
    if (*at) iso_string_printf(out, "\\u003c"), at++;
  }
}

void iso_page_text(const char *text, iso_string *out) {
  for (const char *at = text; *at; at++) {
    switch (*at) {
    case '&':
      iso_string_printf(out, "&amp;");
      break;
    case '<':
      iso_string_printf(out, "&lt;");
      break;
    case '>':
      iso_string_printf(out, "&gt;");
      break;
    case '"':
      iso_string_printf(out, "&quot;");
      break;
    default:
      iso_string_append(out, at, 1);
    }
  }
}
