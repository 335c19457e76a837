// What `pagezip VERB` does. Each throws Error or Cancelled (engine/pipeline.h).
#pragma once

#include "api/cli/options.h"

namespace pagezip {

void run_ask(const Options& options);
void run_compress(const Options& options);
void run_query(const Options& options);
void run_inspect(const Options& options);
void run_scores(const Options& options);
void run_tokenize(const Options& options);
/// Returns the exit code: signals end it in order.
int run_serve(const Options& options);

}  // namespace pagezip
