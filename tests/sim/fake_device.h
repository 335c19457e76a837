// A device that computes nothing: every pair is its fingerprint (tests/sim/truth.h), written and
// read through the views of the plan. Whatever attention would read is compared with the truth, so
// a block that is stale, stolen, shared where it should have been copied, or wrongly compacted is
// seen at the first read.
#pragma once

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "paging/block_table.h"
#include "scheduler/step_plan.h"
#include "tests/sim/truth.h"

namespace pagezip::sim {

struct ModelShape {
  KvGeometry geometry;
  std::vector<KvGroup> groups;
  std::vector<bool> is_global;
  int vocab = 0;
};

class FakeDevice : public Device {
 public:
  FakeDevice(const ModelShape& shape, const Truth& truth) : shape_(shape), truth_(truth) {}

  void run(const StepPlan& plan, StepResult& result) override {
    result.clear();
    result.step = plan.step;
    result.failed = fail_next_ || (failed_ && plan.epoch <= failed_epoch_);
    if (fail_next_) {
      failed_ = true;
      failed_epoch_ = plan.epoch;
      fail_next_ = false;
    }
    if (result.failed) {
      return;
    }
    for (const CopyWork& copy : plan.copies) {
      run_copy(plan, copy);
    }
    result.tokens.assign(static_cast<size_t>(plan.slots), 0);
    result.targets.resize(plan.targets.size());
    for (const RowsWork& rows : plan.rows) {
      run_rows(plan, rows, result);
    }
    for (const ScoreTile& tile : plan.tiles) {
      run_tile(tile);
    }
    for (const SelectWork& work : plan.selects) {
      result.selections.push_back(select(*work.scores, work.spec));
    }
    for (const CompactWork& work : plan.compacts) {
      run_compact(work);
    }
    sampled_.emplace_back(plan.step, result.tokens);
    if (sampled_.size() > 4) {
      sampled_.erase(sampled_.begin());
    }
  }

  void fail_next() { fail_next_ = true; }
  /// The first thing that was not as it must be, or "".
  const std::string& failure() const { return failure_; }

  /// What (group, layer, head) holds of a pair.
  static uint64_t element(uint64_t pair, int group, int layer, int head) {
    return mix(pair, static_cast<uint64_t>(group * 256 + layer * 16 + head) + 77);
  }

 private:
  void fail(const std::string& what) {
    if (failure_.empty()) {
      failure_ = what;
    }
  }

  // The first bytes of the pair's V row.
  std::byte* at(const Segment& segment, int layer, int head, int64_t pair) const {
    const PageLayout& page = shape_.geometry.page;
    return segment.page(layer, head, pair / page.page_tokens) + page.k_bytes() +
           pair % page.page_tokens * page.head_dim * bytes_of(page.v_type);
  }
  uint64_t read(const Segment& segment, int layer, int head, int64_t pair) const {
    uint64_t value = 0;
    std::memcpy(&value, at(segment, layer, head, pair), sizeof value);
    return value;
  }

  template <typename Visit>
  void for_each_list(int group, const Visit& visit) const {
    const auto layers = static_cast<int>(shape_.groups[static_cast<size_t>(group)].layers.size());
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < shape_.geometry.kv_heads; ++head) {
        visit(layer, head);
      }
    }
  }

  void copy(const Segment& from, int64_t source, const Segment& to, int64_t target, int layer,
            int head) {
    std::memcpy(at(to, layer, head, target), at(from, layer, head, source), sizeof(uint64_t));
  }

  void run_copy(const StepPlan& plan, const CopyWork& work) {
    for (int g = 0; g < static_cast<int>(shape_.groups.size()); ++g) {
      const Segment& from = plan.views[static_cast<size_t>(work.first_source + g)].segments[0];
      const Segment& to = plan.views[static_cast<size_t>(work.first_target + g)].segments[0];
      for_each_list(g, [&](int layer, int head) {
        for (int64_t pair = work.first_pair; pair < work.end_pair; ++pair) {
          copy(from, pair, to, pair, layer, head);
        }
      });
    }
  }

  TokenId token(const StepPlan& plan, const RowsWork& rows, int64_t row) {
    if (rows.token_from.step == 0) {
      return plan.tokens[static_cast<size_t>(rows.first_token + row)];
    }
    for (const auto& [step, tokens] : sampled_) {
      if (step == rows.token_from.step) {
        return tokens[static_cast<size_t>(rows.token_from.slot)];
      }
    }
    fail("a row takes its token from a step that is not known");
    return 0;
  }

  void run_rows(const StepPlan& plan, const RowsWork& rows, StepResult& result) {
    const std::string name =
        "rows of " + std::to_string(rows.key.request) + "/" + std::to_string(rows.key.choice);
    const std::vector<uint64_t>* own = nullptr;
    const std::vector<TokenId>* tokens = nullptr;
    const DocumentTruth* document = nullptr;
    int64_t first = 0;
    std::vector<TokenId> job_tokens;
    if (rows.document_job) {
      const JobTruth& job = truth_.jobs.at(rows.key.request);
      own = &job.full.pairs;
      document = job.full.parent;
      first = job.full.first();
      job_tokens = job.spec.prefix;
      job_tokens.insert(job_tokens.end(), job.spec.context.begin(), job.spec.context.end());
      tokens = &job_tokens;
    } else {
      const ChoiceTruth& choice = truth_.choices.at(rows.key);
      own = &choice.pairs;
      tokens = &choice.tokens;
      document = choice.document;
      first = choice.position;
    }
    const int64_t begin = rows.first_position - first;
    const auto known = static_cast<int64_t>(own->size());
    // A row may run behind the end of a choice, while nobody knows of the end yet.
    const bool beyond = rows.token_from.step != 0 && begin + rows.rows > known;
    if (!beyond && (begin < 0 || begin + rows.rows > known)) {
      fail(name + " lie outside their text");
      return;
    }
    if (beyond) {
      return;
    }
    for (int64_t row = 0; row < rows.rows; ++row) {
      if (token(plan, rows, row) != (*tokens)[static_cast<size_t>(begin + row)]) {
        fail(name + " have a wrong token");
        return;
      }
    }
    for (int g = 0; g < static_cast<int>(shape_.groups.size()); ++g) {
      const KvView& view = plan.views[static_cast<size_t>(rows.first_view + g)];
      const Segment& segment = view.segments[view.count - 1];
      if (segment.first_position != first || segment.uniform_length != begin + rows.rows) {
        fail(name + " have a wrong segment");
        return;
      }
      for_each_list(g, [&](int layer, int head) {
        for (int64_t pair = begin; pair < begin + rows.rows; ++pair) {
          const uint64_t value = element((*own)[static_cast<size_t>(pair)], g, layer, head);
          std::memcpy(at(segment, layer, head, pair), &value, sizeof value);
        }
        for (const int64_t row : {begin, begin + rows.rows - 1}) {
          check_own(name, segment, *own, g, layer, head, row);
          check_documents(name, view, view.count - 1, document, g, layer, head, first + row);
        }
      });
    }
    run_targets(plan, rows, std::span(*own).subspan(static_cast<size_t>(begin)), result);
    for (int64_t i = 0; i < rows.slots; ++i) {
      result.tokens[static_cast<size_t>(rows.first_slot + i)] =
          next_token((*own)[static_cast<size_t>(begin + rows.rows - 1)],
                     rows.key.choice + static_cast<uint32_t>(i), shape_.vocab);
    }
  }

  // `pairs`: of the rows.
  void run_targets(const StepPlan& plan, const RowsWork& rows, std::span<const uint64_t> pairs,
                   StepResult& result) {
    if (rows.target_row < 0 || rows.target_row + rows.targets > rows.rows) {
      fail("targets outside their rows");
      return;
    }
    for (int64_t i = 0; i < rows.targets; ++i) {
      const auto at = static_cast<size_t>(rows.first_target + i);
      const TokenId target = plan.targets[at];
      const uint64_t pair = pairs[static_cast<size_t>(rows.target_row + i)];
      result.targets[at] = {target, logprob(pair, target), {}};
    }
  }

  int64_t window_begin(int group, int64_t position) const {
    const int window = shape_.groups[static_cast<size_t>(group)].window;
    return window == 0 ? 0 : std::max<int64_t>(position - window + 1, 0);
  }

  void check_own(const std::string& name, const Segment& segment,
                 const std::vector<uint64_t>& pairs, int group, int layer, int head, int64_t row) {
    const int64_t begin = std::max<int64_t>(
        window_begin(group, segment.first_position + row) - segment.first_position, 0);
    for (int64_t pair = begin; pair <= row; ++pair) {
      if (pair / shape_.geometry.page.page_tokens < segment.first_page) {
        fail(name + " miss a part of their window");
      } else if (read(segment, layer, head, pair) !=
                 element(pairs[static_cast<size_t>(pair)], group, layer, head)) {
        fail(name + " read a wrong pair " + std::to_string(pair) + " of their own");
        return;
      }
    }
  }

  // `document` and its parents, of which the root is the view's first segment.
  void check_documents(const std::string& name, const KvView& view, int segments,
                       const DocumentTruth* document, int group, int layer, int head,
                       int64_t position) {
    for (; document != nullptr && segments > 0; document = document->parent) {
      check_document(name, view.segments[--segments], *document, group, layer, head, position);
    }
    if (document != nullptr || segments != 0) {
      fail(name + " see a wrong number of documents");
    }
  }

  void check_document(const std::string& name, const Segment& segment,
                      const DocumentTruth& document, int group, int layer, int head,
                      int64_t position) {
    const auto wrong = [&](int64_t pair, int64_t logical) {
      return read(segment, layer, head, pair) !=
             element(document.pairs[static_cast<size_t>(logical)], group, layer, head);
    };
    const bool ragged =
        document.kept.has_value() && shape_.groups[static_cast<size_t>(group)].window == 0;
    if (!ragged) {
      for (int64_t p = std::max<int64_t>(window_begin(group, position) - document.first(), 0);
           p < static_cast<int64_t>(document.pairs.size()); ++p) {
        if (p / shape_.geometry.page.page_tokens < segment.first_page || wrong(p, p)) {
          fail(name + " read a wrong pair " + std::to_string(p) + " of their document");
          return;
        }
      }
      return;
    }
    const auto kept = document.kept->head(layer, head);
    if (segment.length(layer, head) != document.prefix + static_cast<int64_t>(kept.size())) {
      fail(name + " see a wrong number of pairs");
      return;
    }
    for (int64_t p = 0; p < segment.length(layer, head); ++p) {
      const int64_t logical =
          p < document.prefix ? p
                              : document.prefix + kept[static_cast<size_t>(p - document.prefix)];
      if (wrong(p, logical)) {
        fail(name + " read a wrong pair " + std::to_string(p) + " of a compressed document");
        return;
      }
    }
  }

  // Tiles of a chunk come layer by layer and row by row, and see the whole document.
  void run_tile(const ScoreTile& tile) {
    const JobTruth& job = truth_.jobs.at(tile.job);
    const bool starts = tile.layer == 0 && tile.first_row == 0;
    const bool next_layer = tile.first_row == 0 && tile.chunk == chunk_ &&
                            tile.layer == layer_ + 1 &&
                            row_ == static_cast<int64_t>(chunk_->tokens.size());
    const bool next_row = tile.chunk == chunk_ && tile.layer == layer_ && tile.first_row == row_;
    if (!starts && !next_layer && !next_row) {
      fail("score tiles of " + std::to_string(tile.job) + " are out of order");
      return;
    }
    chunk_ = tile.chunk;
    layer_ = tile.layer;
    row_ = tile.first_row + tile.rows;
    if (!shape_.is_global[static_cast<size_t>(tile.layer)]) {
      return;
    }
    const auto place = static_cast<int>(
        std::count(shape_.is_global.begin(), shape_.is_global.begin() + tile.layer, true));
    const auto total = static_cast<int64_t>(tile.chunk->tokens.size());
    const KvView view = tile.full->view(0);
    for (int head = 0; head < shape_.geometry.kv_heads; ++head) {
      check_documents("score tile", view, view.count, &job.full, 0, place, head, job.full.length());
      for (int64_t t = tile.chunk->begin; t < tile.chunk->end; ++t) {
        const int64_t row = (t - tile.chunk->begin) % total;
        if (row >= tile.first_row && row < tile.first_row + tile.rows) {
          const size_t index = static_cast<size_t>(
              (int64_t{place} * tile.scores->heads + head) * tile.scores->tokens + t);
          tile.scores->scores[index] =
              score(job.full.pairs[static_cast<size_t>(job.full.prefix + t)], place, head);
        }
      }
    }
  }

  void run_compact(const CompactWork& work) {
    for (int head = 0; head < shape_.geometry.kv_heads; ++head) {
      int64_t to = work.builder->target_first();
      for (const uint32_t from : work.builder->source_pairs(work.layer, head)) {
        copy(work.builder->source(), from, work.builder->target(), to++, work.layer, head);
      }
    }
  }

  const ModelShape& shape_;
  const Truth& truth_;
  std::string failure_;
  std::vector<std::pair<uint64_t, std::vector<TokenId>>> sampled_;  // of the last steps
  bool fail_next_ = false;
  bool failed_ = false;
  uint64_t failed_epoch_ = 0;
  const ScoreChunk* chunk_ = nullptr;  // in the score slot
  int layer_ = 0;
  int64_t row_ = 0;
};

}  // namespace pagezip::sim
