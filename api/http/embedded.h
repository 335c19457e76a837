// Files of this folder that are part of the binary (cmake/embed.cmake).
#pragma once

#include <string_view>

namespace pagezip::http {

std::string_view openapi_json();

}  // namespace pagezip::http
