// `pagezip serve`: from start-up to the last byte of the last stream.
#pragma once

#include "api/http/options.h"

namespace pagezip::http {

/// Serves until a signal. The first SIGINT or SIGTERM drains: no new work, streams finish, durable
/// documents are written; a second one ends at once. SIGHUP reads keys and certificates again.
/// Returns the exit code: 0 after a drain. Throws Error for what is wrong at the start.
int serve(const ServeOptions& options);

}  // namespace pagezip::http
