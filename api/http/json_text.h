// JSON as text, with numbers as people write them: Boost.JSON's own serializer says 3E-1 for 0.3.
#pragma once

#include <boost/json/value.hpp>
#include <string>

namespace pagezip::http {

/// Numbers that JSON can't say become null.
std::string to_text(const boost::json::value& value);

}  // namespace pagezip::http
