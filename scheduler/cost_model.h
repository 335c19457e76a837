// How long a step will take.
//
//   rows:  base + max(weights, rows * row) + pairs * pair + logits * logit
//   tile:  the same for one layer, plus one more product for each scored pair
//
// `pairs` is rows x keys summed over the batch. The coefficients are measured at start
// (engine/calibration.h); one factor for each kind of work then follows what steps really took, so
// a machine that is slower this minute gets smaller steps. Pure arithmetic, no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pagezip {

/// Microseconds for all layers together; a machine's, or plain guesses in tests.
struct CostCoefficients {
  double base_us = 100;      // of a step, whatever is in it
  double weights_us = 5000;  // reading all weights once
  double row_us = 100;       // arithmetic of a row
  double pair_us = 0.05;     // a row against a key
  double logit_us = 200;     // the LM head for one row
  double copy_us = 0.02;     // copying a pair of one (layer, head)
  double select_us = 0.01;   // selecting among one pair's scores
  int layers = 1;
};

enum class CostKind : uint8_t { kDecode, kPrefill, kScore, kCompact };

class CostModel {
 public:
  explicit CostModel(const CostCoefficients& coefficients) : c_(coefficients) {}

  const CostCoefficients& coefficients() const { return c_; }

  /// A batch. `decode_only` picks the factor.
  double rows_us(int64_t rows, int64_t pairs, int64_t logits, bool decode_only) const;
  /// What `rows` more rows, `logits` of them with logits, add to a batch that has `before` already.
  double more_rows_us(int64_t before, int64_t rows, int64_t pairs, int64_t logits) const;
  /// The most rows, up to `limit`, that more_rows_us() allows within `budget_us`; keys: of the
  /// first of them; logits: whether every row has them.
  int64_t rows_within(int64_t before, int64_t limit, int64_t keys, bool logits,
                      double budget_us) const;
  double tile_us(int64_t rows, int64_t keys, int64_t scored) const;
  double compact_us(int64_t pairs) const {
    return factor(CostKind::kCompact) * c_.copy_us * static_cast<double>(pairs);
  }
  double select_us(int64_t pairs) const {
    return factor(CostKind::kCompact) * c_.select_us * static_cast<double>(pairs);
  }

  /// A measurement of work that was predicted to take `predicted_us`.
  void observe(CostKind kind, double predicted_us, double measured_us);
  double factor(CostKind kind) const { return kinds_[static_cast<size_t>(kind)].factor; }
  /// How far above its prediction a piece of work of this kind may come: about the 99th percentile
  /// of measured ÷ predicted, at least 1.
  double margin(CostKind kind) const { return kinds_[static_cast<size_t>(kind)].margin; }

 private:
  struct Kind {
    double factor = 1;  // moving average of measured ÷ predicted
    double margin = 1;
  };
  CostCoefficients c_;
  std::array<Kind, 4> kinds_;
};

}  // namespace pagezip
