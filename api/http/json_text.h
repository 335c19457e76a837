// JSON as text, with numbers as people write them: Boost.JSON's own serializer says 3E-1 for 0.3.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace pagezip::http {

/// Numbers that JSON can't say become null.
std::string to_text(const boost::json::value& value);

/// As numbers: of what may be no text by itself.
boost::json::array bytes_json(std::string_view bytes);

}  // namespace pagezip::http
