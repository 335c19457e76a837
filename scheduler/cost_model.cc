#include "scheduler/cost_model.h"

#include <algorithm>

namespace pagezip {

double CostModel::rows_us(int64_t rows, int64_t pairs, int64_t logits, bool decode_only) const {
  if (rows == 0) {
    return 0;
  }
  const double dense = std::max(c_.weights_us, static_cast<double>(rows) * c_.row_us);
  const double sum = c_.base_us + dense + static_cast<double>(pairs) * c_.pair_us +
                     static_cast<double>(logits) * c_.logit_us;
  return factor(decode_only ? CostKind::kDecode : CostKind::kPrefill) * sum;
}

double CostModel::more_rows_us(int64_t before, int64_t rows, int64_t pairs, int64_t logits) const {
  return rows_us(before + rows, pairs, logits, false) -
         (before == 0 ? 0 : rows_us(before, 0, 0, false));
}

int64_t CostModel::rows_within(int64_t before, int64_t limit, int64_t keys, bool logits,
                               double budget_us) const {
  // more_rows_us grows with rows: the last one that fits is found by halving.
  int64_t fits = 0;
  for (int64_t low = 1, high = limit; low <= high;) {
    const int64_t rows = low + (high - low) / 2;
    const int64_t pairs = rows * keys + rows * (rows - 1) / 2;
    if (more_rows_us(before, rows, pairs, logits ? rows : 0) <= budget_us) {
      fits = rows;
      low = rows + 1;
    } else {
      high = rows - 1;
    }
  }
  return fits;
}

double CostModel::tile_us(int64_t rows, int64_t keys, int64_t scored) const {
  const double dense = std::max(c_.weights_us, static_cast<double>(rows) * c_.row_us);
  const double pairs = static_cast<double>(rows) * static_cast<double>(keys + scored);
  return factor(CostKind::kScore) * (dense + pairs * c_.pair_us) / c_.layers;
}

void CostModel::observe(CostKind kind, double predicted_us, double measured_us) {
  if (predicted_us <= 0 || measured_us <= 0) {
    return;
  }
  Kind& k = kinds_[static_cast<size_t>(kind)];
  // predicted_us contains the factor already, so the ratio says how wrong that still is. One wild
  // measurement (the process was stopped for a second) moves it by a fifth at most.
  const double ratio = std::clamp(measured_us / predicted_us, 0.25, 4.0);
  constexpr double kWeight = 0.05;
  k.factor = std::clamp(k.factor * (1 + kWeight * (ratio - 1)), 0.01, 100.0);
  // A quantile by steps (Robbins and Monro 1951): up by 99 parts where the measurement is above,
  // down by one where it is below.
  constexpr double kStep = 0.002;
  k.margin = std::clamp(k.margin + (ratio > k.margin ? 99 * kStep : -kStep), 1.0, 2.0);
}

}  // namespace pagezip
