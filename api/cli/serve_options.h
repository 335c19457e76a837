// The options of `pagezip serve`, but for those that all verbs have.
#pragma once

#include <CLI/CLI.hpp>

#include "api/http/options.h"

namespace pagezip {

/// And a name in the environment for every option of `app`.
void add_serve_options(CLI::App& app, http::ServeOptions& options);

}  // namespace pagezip
