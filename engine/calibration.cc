#include "engine/calibration.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"

namespace pagezip {
namespace {

// One sequence of whatever the blocks contain, read at any depth.
class Probe {
 public:
  Probe(Transformer& transformer, BlockPool& pool, const Clock& clock, int64_t length)
      : transformer_(transformer),
        clock_(clock),
        sequence_(pool, transformer.model().kv_groups(), 0),
        tokens_(static_cast<size_t>(length), 0),
        logits_(*transformer.kernels().memory) {
    logits_.resize(transformer.model().config().vocab);
    auto blocks = pool.reserve(sequence_.blocks_needed(length));
    CHECK(blocks.has_value());
    sequence_.grow(length, *blocks);
    for (int g = 0; g < sequence_.groups(); ++g) {
      views_.emplace_back().push(sequence_.segment(g));
    }
  }

  /// The fastest of a few runs of the last `rows` rows before `end`.
  double us(int64_t end, int64_t rows, bool logits) {
    int64_t best = std::numeric_limits<int64_t>::max();
    for (int run = 0; run < 3; ++run) {
      const RowSpan span{std::span(tokens_).first(static_cast<size_t>(rows)), end - rows, views_,
                         logits};
      const int64_t start = clock_.now_us();
      transformer_.forward({&span, 1}, {logits ? logits_.device() : nullptr, 1, logits_.size()});
      transformer_.kernels().memory->wait();
      best = std::min(best, clock_.now_us() - start);
    }
    return static_cast<double>(best);
  }

 private:
  Transformer& transformer_;
  const Clock& clock_;
  Sequence sequence_;
  std::vector<TokenId> tokens_;
  std::vector<KvView> views_;
  MirroredArray<float> logits_;
};

}  // namespace

CostCoefficients calibrate(Transformer& transformer, BlockPool& pool, const Clock& clock) {
  const int64_t pool_tokens = pool.blocks_available() /
                              static_cast<int64_t>(transformer.model().kv_groups().size()) *
                              pool.geometry().page.page_tokens;
  const int64_t rows = std::min<int64_t>({64, transformer.rows_max(), pool_tokens});
  const int64_t length =
      std::min<int64_t>({1024, pool_tokens, transformer.model().config().context_max});
  CostCoefficients c;
  c.layers = transformer.model().config().layers;
  Probe probe(transformer, pool, clock, length);
  probe.us(rows, rows, true);  // the first batch finds cold memory
  const double one = probe.us(1, 1, false);
  const double many = probe.us(rows, rows, false);
  const double deep = probe.us(length, rows, false);
  const double with_logits = probe.us(1, 1, true);
  // Keys that the rows see more at the end than at the start.
  const auto pairs = static_cast<double>(rows) * static_cast<double>(length - rows);
  c.base_us = 0.02 * one;
  c.weights_us = 0.98 * one;
  c.pair_us = pairs > 0 ? std::max((deep - many) / pairs, 1e-4) : 0.05;
  const double own_pairs = static_cast<double>(rows) * static_cast<double>(rows + 1) / 2;
  c.row_us = std::max(many - c.base_us - own_pairs * c.pair_us, 1.0) / static_cast<double>(rows);
  c.logit_us = std::max(with_logits - one, 1.0);
  return c;
}

}  // namespace pagezip
