// The scheduler's rules as pure functions of numbers: who goes first, and how much background work
// is let in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/request.h"

namespace pagezip {

/// Time as the scheduler sees it: microseconds of the engine's clock.
using TimeUs = int64_t;

/// What a waiting piece of work is compared by.
struct Rank {
  int64_t urgency = 0;   // larger goes first
  double served_us = 0;  // of its tenant; less goes first
  WorkId id = 0;         // older goes first
  uint32_t choice = 0;

  /// True if a goes before b.
  friend bool operator<(const Rank& a, const Rank& b) {
    if (a.urgency != b.urgency) return a.urgency > b.urgency;
    if (a.served_us != b.served_us) return a.served_us < b.served_us;
    if (a.id != b.id) return a.id < b.id;
    return a.choice < b.choice;
  }
};

/// Priority with ageing: one more for every `ageing_us` of waiting, so nothing starves.
/// Benefit: a bound on waiting without a second queue. Cost: under lasting overload the order
/// becomes first come, first served, whatever the priorities.
inline int64_t urgency(int priority, TimeUs waited_us, TimeUs ageing_us) {
  return priority + std::max<TimeUs>(waited_us, 0) / ageing_us;
}

/// The least share of a step that background work (documents) may take: it rises with the part of
/// the pool that nothing can be evicted from, because compression is what frees memory.
/// Benefit: a full pool is relieved instead of preempting. Cost: decode is slower just when the
/// machine is busiest, by at most 1 / (1 - 0.5).
inline double background_floor(double occupancy) {
  constexpr double kLeast = 0.1;
  constexpr double kMost = 0.5;
  return std::clamp(kLeast + (occupancy - 0.6) / (0.95 - 0.6) * (kMost - kLeast), kLeast, kMost);
}

/// How long a step may take whose decode rows take decode_us.
inline double step_budget_us(double target_us, double decode_us, double floor, bool background) {
  return background ? std::max(target_us, decode_us / (1 - floor)) : target_us;
}

/// What may be planned beside decode rows so that the step takes `budget_us` as predicted, and,
/// where the work takes `margin` times its prediction, still no more than a quarter above.
inline double background_room_us(double budget_us, double decode_us, double margin) {
  return std::min(budget_us - decode_us, (1.25 * budget_us - decode_us) / margin);
}

}  // namespace pagezip
