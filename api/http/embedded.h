// Files of this folder that are part of the binary (cmake/embed.cmake).
#pragma once

#include <string_view>

namespace pagezip::http {

std::string_view openapi_json();

std::string_view page_index();
std::string_view page_icon();
std::string_view page_style();
std::string_view page_app();
std::string_view page_api();
std::string_view page_ui();
std::string_view page_documents();
std::string_view page_kept();
std::string_view page_live();
std::string_view page_playground();
std::string_view page_uplot_js();
std::string_view page_uplot_css();
std::string_view page_uplot_license();

}  // namespace pagezip::http
