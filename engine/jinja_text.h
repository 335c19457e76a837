// Text functions that exist both as filters and as methods. Letters outside of ASCII keep their
// case: templates change the case of roles and names, which are ASCII.
#pragma once

#include "engine/jinja_builtins.h"
#include "engine/jinja_value.h"

namespace pagezip::jinja {

/// Python's str.strip() at the chosen ends; `characters` null: white space.
Text strip(const Text& text, const Text* characters, bool left, bool right);
Text upper(Text text);
Text lower(Text text);
Text title(Text text);
Text capitalize(Text text);
/// arguments: from, to, at most how often.
Value replace(const Text& text, const Arguments& arguments, Budget& budget);
/// A list of [key, value].
Value dict_items(const Dict& dict);

}  // namespace pagezip::jinja
