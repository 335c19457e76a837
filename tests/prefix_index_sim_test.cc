// Random lives of sequences that read and feed a prefix index, in a pool that is barely big enough.
//
// Every step is made in a slow model too (prefix_index_model.h): hits, freed blocks and the blocks
// that the index pins must be the same. And every block is stamped with what its pairs depend on:
// space, KV group, all tokens up to its end, and whether decode had a part in it; so whatever a hit
// returns is checked against its tokens, not only against the model.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "paging/prefix_index.h"
#include "tests/prefix_index_model.h"
#include "tests/sim/seed_report.h"

namespace pagezip {
namespace {

using Tokens = std::vector<TokenId>;
using Reached = std::map<std::string, int>;

PageHash colliding_hash(const PageHash& parent, std::span<const TokenId> tokens) {
  return {hash_page(parent, tokens).low & 3, 0};
}

struct SimOptions {
  KvGeometry geometry;
  std::vector<KvGroup> groups;
  PrefixTree::Hasher hasher = hash_page;
  int64_t blocks = 0;
  int64_t pages_max = 0;  // of a sequence
  int steps = 0;
  uint64_t variants = 0;  // of a page's tokens

  static SimOptions swarm(Prng& prng) {
    SimOptions options;
    const int page_tokens = 16 << prng.below(3);
    const auto window = [&] { return static_cast<int>(prng.range(1, 5 * page_tokens)); };
    const std::vector<std::vector<KvGroup>> models = {
        {{{0}, 0}},
        {{{0}, 0}, {{1}, window()}},
        make_kv_groups({true, false, false}, window()),
        {{{0}, 0}, {{1}, window()}, {{2}, window()}},
        {{{0}, window()}},
    };
    options.groups = models[prng.below(models.size())];
    options.geometry.page = {KvType::kF16, KvType::kF16, page_tokens, 16};
    options.geometry.kv_heads = 1;
    options.geometry.layers_per_block = 1;
    options.hasher = prng.chance(0.5) ? hash_page : colliding_hash;
    options.pages_max = prng.range(2, 12);
    options.blocks = prng.range(4, 20) * static_cast<int64_t>(options.groups.size());
    options.steps = static_cast<int>(prng.range(40, 120));
    options.variants = static_cast<uint64_t>(prng.range(1, 3));
    return options;
  }
};

struct SimSequence {
  Sequence sequence;
  std::string space;
  Tokens tokens;             // all that it will ever have
  int64_t prefilled = 0;     // pairs before the first that decode had a part in
  bool has_decoded = false;  // since the last publish()
  PrefixIndex::Cursor cursor;
  PrefixModel::Cursor model_cursor;
};

class Simulation {
 public:
  Simulation(const SimOptions& options, Prng& prng)
      : options_(options),
        page_(options.geometry.page.page_tokens),
        prng_(prng),
        pool_(options.geometry, options.blocks),
        index_(pool_, options.groups, options.hasher),
        model_(pool_, options.groups) {}

  /// Returns the first violation, or "".
  std::string run(Reached& reached) {
    for (int i = 0; i < options_.steps && failure_.empty(); ++i) {
      step();
      verify();
    }
    sequences_.clear();
    if (failure_.empty()) {
      evict(pool_.blocks_total());
      verify();
      expect(pool_.blocks_free() == pool_.blocks_total(), "the pool isn't full at the end");
      expect(index_.stats().pages == 0, "pages are left at the end");
    }
    for (const auto& [path, times] : model_.reached) {
      reached[path] += times;
    }
    reached["hit"] += hits_;
    return failure_;
  }
  uint64_t trace() const { return trace_; }

 private:
  void expect(bool condition, const std::string& what) {
    if (!condition && failure_.empty()) {
      failure_ = what;
    }
  }

  void step() {
    const uint64_t action = prng_.below(40);
    if (action < 8 || sequences_.empty()) {
      start();
    } else if (action < 26) {
      grow(any());
    } else if (action < 30) {
      SimSequence& one = any();
      one.sequence.drop_behind(one.sequence.length());
    } else if (action < 37) {
      sequences_.erase(sequences_.begin() + (&any() - sequences_.data()));
    } else if (action < 39) {
      evict(prng_.range(1, 6));
    } else if (prng_.chance(0.2)) {
      model_.clear();
      index_.clear();
    } else {
      const std::string space = any_space();
      model_.drop_space(space);
      index_.drop_space(space);
    }
  }

  SimSequence& any() { return sequences_[prng_.below(sequences_.size())]; }
  std::string any_space() { return prng_.chance(0.8) ? "one" : "two"; }

  /// Pages that differ in at most one token; mostly the same ones.
  Tokens any_tokens() {
    Tokens tokens;
    const int64_t length = prng_.range(1, options_.pages_max * page_);
    while (static_cast<int64_t>(tokens.size()) < length) {
      const size_t first = tokens.size();
      tokens.resize(first + static_cast<size_t>(page_), 7);
      if (prng_.chance(0.3)) {
        const uint64_t variant = prng_.below(options_.variants);
        tokens[first + variant * 7 % static_cast<uint64_t>(page_)] = 8;
      }
    }
    tokens.resize(static_cast<size_t>(length));
    return tokens;
  }

  void start() {
    SimSequence started{
        Sequence(pool_, options_.groups, 0), any_space(), any_tokens(), 0, false, {}, {}};
    const auto length = static_cast<int64_t>(started.tokens.size());
    const int64_t length_max = prng_.chance(0.7) ? length : prng_.range(-1, length + 9);
    const bool prefill_only = prng_.chance(0.2);
    const int64_t expected = model_.match(started.space, started.tokens, length_max, prefill_only);
    PrefixIndex::Hit hit = index_.acquire(started.space, started.tokens, length_max, prefill_only);
    expect(hit.length == expected,
           "a hit of " + std::to_string(hit.length) + " pairs, not " + std::to_string(expected));
    expect(hit.runs.empty() == (hit.length == 0), "a hit has runs without pairs, or none");
    if (hit.length > 0 && failure_.empty()) {
      ++hits_;
      started.model_cursor = model_.use(started.space, started.tokens, hit.length);
      started.sequence.adopt(std::move(hit.runs));
      started.prefilled = started.model_cursor.prefill_pages * page_;
      expect(!prefill_only || started.prefilled == hit.length, "prefill_only isn't obeyed");
      expect(hit.cursor.prefill_pages * page_ == started.prefilled, "wrong origin of a hit");
    }
    started.cursor = hit.cursor;
    sequences_.push_back(std::move(started));
  }

  void grow(SimSequence& grown) {
    const int64_t first = grown.sequence.length();
    const int64_t length = std::min<int64_t>(first + prng_.range(1, 3 * page_),
                                             static_cast<int64_t>(grown.tokens.size()));
    const int64_t needed = grown.sequence.blocks_needed(length);
    if (needed > pool_.blocks_available()) {
      evict(needed - pool_.blocks_available());
    }
    std::optional<BlockReservation> reservation = pool_.reserve(needed);
    if (!reservation.has_value()) {
      expect(index_.blocks_idle() == 0, "blocks are refused but idle in the index");
      return;
    }
    const bool is_decode = prng_.chance(0.3);
    grown.sequence.grow(length, *reservation);
    grown.has_decoded |= is_decode && length > first;
    if (grown.prefilled == first && !is_decode) {
      grown.prefilled = length;
    }
    stamp(grown, first / page_);
    if (prng_.chance(0.8)) {
      publish(grown);
    }
  }

  void publish(SimSequence& from) {
    const int64_t pages = from.sequence.length() / page_;
    std::vector<PrefixModel::Blocks> blocks;
    for (int64_t page = 0; page < pages; ++page) {
      PrefixModel::Blocks held(options_.groups.size());
      for (size_t group = 0; group < held.size(); ++group) {
        const BlockTable& table = from.sequence.table(static_cast<int>(group));
        if (table.first_page() <= page) {
          held[group] = table.segment().ids[page - table.first_page()];
        }
      }
      blocks.push_back(std::move(held));
    }
    if (pages > 0) {
      model_.publish(from.space, from.tokens, blocks, from.has_decoded, from.model_cursor);
    }
    index_.publish(from.space, from.tokens, from.sequence, from.sequence.length(),
                   from.has_decoded ? KvOrigin::kDecode : KvOrigin::kPrefill, from.cursor);
    expect(from.cursor.pages == from.model_cursor.pages, "a cursor stands elsewhere");
    if (from.cursor.pages == pages && pages * page_ == from.sequence.length()) {
      from.has_decoded = false;
    }
  }

  void evict(int64_t blocks) {
    const int64_t free = pool_.blocks_free();
    const int64_t idle = index_.blocks_idle();
    const int64_t expected = model_.evict(blocks);
    const int64_t freed = index_.evict(blocks);
    expect(freed == pool_.blocks_free() - free, "evict() miscounts");
    expect(freed >= std::min(blocks, idle), "evict() leaves idle blocks");
    expect(freed == expected,
           "evict() freed " + std::to_string(freed) + " blocks, not " + std::to_string(expected));
  }

  // ---- contents ----

  struct Stamp {
    uint64_t text = 0;  // of all that the pairs depend on
    bool is_prefill = false;
  };
  uint64_t text_of(const SimSequence& live, int group, int64_t pairs) const {
    uint64_t text = live.space == "one" ? 1 : 2;
    for (int64_t i = 0; i < pairs; ++i) {
      text = Prng(text ^ static_cast<uint64_t>(live.tokens[static_cast<size_t>(i)])).next();
    }
    return Prng(text + static_cast<uint64_t>(group)).next();
  }
  std::byte* block_of(const SimSequence& live, int group, int64_t page) const {
    return live.sequence.segment(group).page(0, 0, page);
  }
  void stamp(const SimSequence& live, int64_t first_page) {
    for (int group = 0; group < live.sequence.groups(); ++group) {
      for (int64_t page = first_page; (page + 1) * page_ <= live.sequence.length(); ++page) {
        const Stamp stamp{text_of(live, group, (page + 1) * page_),
                          (page + 1) * page_ <= live.prefilled};
        std::memcpy(block_of(live, group, page), &stamp, sizeof(stamp));
      }
    }
  }
  void verify_contents(const SimSequence& live) {
    for (int group = 0; group < live.sequence.groups(); ++group) {
      const int64_t first = live.sequence.table(group).first_page();
      for (int64_t page = first; (page + 1) * page_ <= live.sequence.length(); ++page) {
        Stamp stamp;
        std::memcpy(&stamp, block_of(live, group, page), sizeof(stamp));
        expect(stamp.text == text_of(live, group, (page + 1) * page_),
               "a block has the pairs of other tokens");
        expect(stamp.is_prefill || (page + 1) * page_ > live.prefilled,
               "a block of decode where there should be prefill");
      }
    }
  }

  void verify() {
    trace_ = trace_ * 31 + static_cast<uint64_t>(pool_.blocks_free() * 1000 + index_.stats().pages);
    expect(index_.audit().empty(), index_.audit());
    std::vector<uint32_t> pins(static_cast<size_t>(pool_.blocks_total()), 0);
    std::vector<uint32_t> expected = pins;
    index_.count_refs(pins);
    model_.count_refs(expected);
    expect(pins == expected, "the index pins other blocks than the model");
    expect(index_.stats().pages == model_.pages(), "the index has other pages than the model");
    for (const SimSequence& live : sequences_) {
      live.sequence.count_refs(pins);
      verify_contents(live);
    }
    const std::string violation = pool_.audit_owners(pins, 0);
    expect(violation.empty(), violation);
    for (int i = 0; i < 4; ++i) {
      const std::string space = any_space();
      const Tokens tokens = any_tokens();
      const auto length = static_cast<int64_t>(tokens.size());
      expect(index_.match(space, tokens, length, i == 0) ==
                 model_.match(space, tokens, length, i == 0),
             "match() finds a wrong length");
    }
  }

  SimOptions options_;
  int64_t page_;
  Prng& prng_;
  BlockPool pool_;  // outlives everything below
  PrefixIndex index_;
  PrefixModel model_;
  std::vector<SimSequence> sequences_;
  int hits_ = 0;
  uint64_t trace_ = 0;
  std::string failure_;
};

/// Runs a seed and returns its trace. A violation is reported before anything is destroyed.
uint64_t simulate(uint64_t seed, Reached& reached) {
  const SeedReport report(seed);
  Prng prng(seed);
  Simulation simulation(SimOptions::swarm(prng), prng);
  EXPECT_EQ(simulation.run(reached), "") << "SIM_SEED=" << seed;
  return simulation.trace();
}

TEST(PrefixIndexSim, Swarm) {
  Reached reached;
  if (const char* seed = std::getenv("SIM_SEED")) {
    simulate(std::strtoull(seed, nullptr, 10), reached);
    return;
  }
  for (uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) {
    simulate(seed, reached);
  }
  for (const char* path : {"hit", "left", "upgraded", "replaced_idle", "removed_link", "useless",
                           "leaf", "stripped", "passed_over", "out_of_order"}) {
    EXPECT_GT(reached[path], 50) << path;
  }
}

TEST(PrefixIndexSim, SameSeedSameRun) {
  Reached reached;
  EXPECT_EQ(simulate(3, reached), simulate(3, reached));
}

}  // namespace
}  // namespace pagezip
