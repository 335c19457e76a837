#include "api/http/page.h"

#include <fmt/format.h>

#include "api/http/documents.h"
#include "api/http/embedded.h"

namespace pagezip::http {
namespace {

struct PageFile {
  const char* path;
  const char* type;
  std::string_view (*bytes)();
};

constexpr const char* kScript = "text/javascript; charset=utf-8";
constexpr const char* kStyle = "text/css; charset=utf-8";

constexpr PageFile kFiles[] = {
    {"/", "text/html; charset=utf-8", page_index},
    {"/page/icon.svg", "image/svg+xml", page_icon},
    {"/page/style.css", kStyle, page_style},
    {"/page/app.js", kScript, page_app},
    {"/page/api.js", kScript, page_api},
    {"/page/ui.js", kScript, page_ui},
    {"/page/documents.js", kScript, page_documents},
    {"/page/kept.js", kScript, page_kept},
    {"/page/live.js", kScript, page_live},
    {"/page/playground.js", kScript, page_playground},
    {"/page/uplot/uPlot.iife.min.js", kScript, page_uplot_js},
    {"/page/uplot/uPlot.min.css", kStyle, page_uplot_css},
    {"/page/uplot/LICENSE", "text/plain; charset=utf-8", page_uplot_license},
};

// Nothing from elsewhere, nothing inline, and no page may frame it.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

Reply page_reply(const PageFile& file, const RequestHead& head) {
  const std::string_view bytes = file.bytes();
  const std::string etag = fmt::format("\"{}\"", content_hash(bytes));
  Reply reply;
  reply.content_type = file.type;
  reply.headers = {{"ETag", etag},
                   {"Cache-Control", "no-cache"},  // asks each time whether it is still the same
                   {"Content-Security-Policy", kPolicy},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"}};
  if (head.header("if-none-match") == etag) {
    reply.status = 304;
  } else {
    reply.body = bytes;
  }
  return reply;
}

}  // namespace

std::vector<Route> page_routes() {
  std::vector<Route> routes;
  for (const PageFile& file : kFiles) {
    routes.push_back(
        {"GET", file.path, Access::kPublic, [&file](Exchange& exchange, const PathParts&) {
           Reply reply = page_reply(file, exchange.head());
           return exchange.send(std::move(reply));
         }});
  }
  return routes;
}

}  // namespace pagezip::http
