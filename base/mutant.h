// Seeded bugs, to prove that the simulation finds such bugs (tests/sim/mutation_test.cc). In every
// other build MUTANT(x) is false and leaves no trace.
#pragma once

#ifdef PAGEZIP_MUTANTS

#include <cstdint>

namespace pagezip {

enum class Mutant : uint8_t {
  kNone,
  kPinAfterLookUp,        // a cached prefix is evicted between look-up and pin
  kLeakOnCancel,          // a cancelled sequence keeps its blocks
  kPublishBeforeCopy,     // a compressed document is published before its last layer
  kTailNotCopied,         // a fork reads its partly filled block without a copy
  kLostWakeUp,            // nobody looks at who waits when a request ends
  kDoubleFree,            // blocks behind a window are freed twice
  kWrongPosition,         // a question starts behind the kept pairs, not behind the text
  kSaltLeftOut,           // tenants share a chain
  kStarvationByScoring,   // prompts wait while there is a document
  kDeferredFreeThrash,    // preempts on while what it freed is still fenced
  kStaleResult,           // a result counts for a choice that was preempted meanwhile
  kPendingKept,           // a failed step's samples are still waited for
  kReservationKept,       // who is preempted keeps its reservation
  kWindowDroppedEarly,    // blocks go that a row in flight still sees
  kSharedBlockCompacted,  // kept pairs are written behind a prefix in a block that others read
  kStaleHash,             // a chain goes on behind a page that was evicted meanwhile
  kResumedChunk,  // a chunk goes on in its middle after the step that had its beginning failed
  kTornFile,      // the folder's index takes a file that was not finished for a document
  // In CUDA kernels (tests/cuda_sim/mutation_test.cc).
  kBarrierLeftOut,       // logits are exchanged without a barrier
  kWaitLeftOut,          // values are read before their copies have landed
  kScoreBarrierLeftOut,  // maxima of other warps are read before they are there
  kWrongTailMask,        // the last pairs of a tile count although they are beyond the end
  kWrongScaleRow,        // a pair is scaled by its neighbour's scale
  kOffByOnePage,         // the page behind the one that is asked for
  kMergeWithoutRescale,  // partial outputs are added as if they had the same maximum
  kCausalOffByOne,       // a row sees the pair behind it
  kGroupRowMixUp,        // query heads and rows are confused
  kUninitialisedShared,  // a histogram begins with what was in shared memory
  kUnstableCompaction,   // kept pairs lose their order
  kTiesUncounted,        // all pairs of a tie at the threshold are kept
};
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): the test sets it
extern Mutant active_mutant;

}  // namespace pagezip

#define MUTANT(name) (::pagezip::active_mutant == ::pagezip::Mutant::name)
#else
#define MUTANT(name) false
#endif
