// A small, bounded interpreter for the Jinja templates that come with models.
//
// A subset: what it does not know ends in an Error that names the construct and its line. Work,
// nesting, template and output are bounded, so a hostile template ends in an Error too.
// Control tokens in message text cannot pass for the template's: see jinja::Text.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja_ast.h"
#include "engine/jinja_value.h"

namespace pagezip::jinja {

/// The text of raise_exception(). A template refuses its input so.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Immutable once made; const methods from any thread.
class Template {
 public:
  /// Throws Error(kModelFile) for what it cannot parse.
  explicit Template(std::string_view source) : block_(parse(source)) {}

  /// `variables`: what the template sees, by name. `time`: seconds since 1970, for strftime_now.
  /// Throws Error(kModelFile) for a mistake in the template, Refusal where it refuses.
  Text render(std::vector<std::pair<std::string, Value>> variables, int64_t time) const;

 private:
  Block block_;
};

}  // namespace pagezip::jinja
