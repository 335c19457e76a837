// The web page at / (api/http/page/): files of the binary, for anybody. What it shows comes from
// the API, with the key that its user types in.
#pragma once

#include <vector>

#include "api/http/router.h"

namespace pagezip::http {

std::vector<Route> page_routes();

}  // namespace pagezip::http
