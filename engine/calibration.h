// Measures what the scheduler's cost model wants to know of this machine and model.
#pragma once

#include "base/clock.h"
#include "engine/transformer.h"
#include "paging/block_pool.h"
#include "scheduler/cost_model.h"

namespace pagezip {

/// Runs a few batches of made-up tokens, for about as long as a short prompt takes. Uses free
/// blocks of the pool and gives them back. Engine thread only.
CostCoefficients calibrate(Transformer& transformer, BlockPool& pool, const Clock& clock);

}  // namespace pagezip
