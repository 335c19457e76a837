// Random lives of sequences and documents in a pool that is barely big enough.
//
// Every pair gets a fingerprint of (who wrote it when, KV group, layer, head) in all its K and V
// bytes. After every step all pairs are read back through every live view, and the pool's books are
// compared with the pins of all owners: so a block that is stolen, freed early, shared where it
// should have been copied, or leaked is seen in the step that did it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "paging/block_pool.h"
#include "paging/block_table.h"
#include "paging/document.h"
#include "paging/selection.h"
#include "tests/fingerprint.h"
#include "tests/host_arena.h"
#include "tests/sim/seed_report.h"

namespace pagezip {
namespace {

/// How often the rare paths ran, over all seeds.
using Reached = std::map<std::string, int>;

struct SimOptions {
  KvGeometry geometry;
  std::vector<KvGroup> groups;
  int64_t blocks = 0;
  bool hosted = false;  // in a pool of somebody else's
  int64_t length_max = 0;
  int steps = 0;

  static SimOptions swarm(Prng& prng) {
    const std::vector<std::vector<bool>> models = {
        {true, true},
        {false, true, false, false, true, false},  // two sliding groups
        {false, true, false, true, false},         // the second sliding group is padded
        {false, false},
    };
    const auto type = [&] { return prng.chance(0.7) ? KvType::kF16 : KvType::kF32; };
    SimOptions options;
    const auto window = static_cast<int>(prng.range(2, 70));
    options.groups = make_kv_groups(models[prng.below(models.size())], window);
    options.geometry.page = {type(), type(), prng.chance(0.8) ? 16 : 32, 16};
    options.geometry.kv_heads = static_cast<int>(prng.range(1, 2));
    options.geometry.layers_per_block = static_cast<int>(options.groups[0].layers.size());
    options.length_max = prng.range(40, 160);
    options.blocks = prng.range(8, 60);
    options.geometry.order = prng.chance(0.5) ? BlockOrder::kLayerMajor : BlockOrder::kHeadMajor;
    options.hosted = prng.chance(0.3);
    options.steps = static_cast<int>(prng.range(20, 60));
    return options;
  }
};

/// What a document should hold. Shared by its readers, as the document itself.
struct DocumentRecord {
  std::shared_ptr<const Document> document;
  std::vector<uint64_t> stamps;  // [logical_length]
  std::optional<KeptSets> kept;  // only if compressed
  std::weak_ptr<const DocumentRecord> full_version;
};
using Reader = std::shared_ptr<const DocumentRecord>;

struct SimSequence {
  Sequence sequence;
  Reader document;               // the document that the sequence asks about, or null
  std::vector<uint64_t> stamps;  // [length]
  int64_t committed = 0;         // rows before it never run again
  int64_t frozen = 0;
};

class Simulation {
 public:
  Simulation(const SimOptions& options, Prng& prng, Reached& reached)
      : options_(options),
        prng_(prng),
        reached_(reached),
        host_(options.geometry, options.blocks, prng.next()),
        pool_(options.hosted ? BlockPool(options.geometry, host_.arena())
                             : BlockPool(options.geometry, options.blocks)) {}

  /// Returns the first violation, or "".
  std::string run() {
    for (int i = 0; i < options_.steps && failure_.empty(); ++i) {
      step();
      verify_all();
    }
    while (failure_.empty() && !(sequences_.empty() && readers_.empty() && held_.empty())) {
      drop_something();
      verify_all();
    }
    if (failure_.empty() && (pool_.blocks_in_use() != 0 || pool_.blocks_reserved() != 0 ||
                             static_cast<int64_t>(host_.blocks_free()) != options_.blocks)) {
      fail("the pool isn't full at the end");
    }
    return failure_;
  }
  uint64_t trace() const { return trace_; }

 private:
  void fail(const std::string& what) {
    if (failure_.empty()) {
      failure_ = what;
    }
  }

  const PageLayout& page() const { return options_.geometry.page; }

  template <typename T>
  size_t pick(const std::vector<T>& from) {
    return static_cast<size_t>(prng_.below(from.size()));
  }

  void step() {
    const auto action = static_cast<int>(prng_.below(20));
    trace_ = trace_ * 31 + static_cast<uint64_t>(action) + pool_.blocks_available() * 1000003ull;
    if (action < 2 || sequences_.empty()) {
      start_sequence();
    } else if (action < 7) {
      grow(sequences_[pick(sequences_)]);
    } else if (action < 9) {
      truncate(sequences_[pick(sequences_)]);
    } else if (action < 11) {
      commit(sequences_[pick(sequences_)]);
    } else if (action < 13) {
      publish_full();
    } else if (action < 15) {
      compress();
    } else if (action < 16) {
      ask_question();
    } else if (action < 17) {
      share_or_hold();
    } else {
      drop_something();
    }
  }

  void start_sequence() {
    SimSequence started{Sequence(pool_, options_.groups, 0), nullptr, {}};
    if (!sequences_.empty() && prng_.chance(0.5)) {
      adopt_prefix(sequences_[pick(sequences_)], started);
    }
    grow(started);
    sequences_.push_back(std::move(started));
  }

  void adopt_prefix(SimSequence& donor, SimSequence& started) {
    const int64_t page_tokens = page().page_tokens;
    const int64_t length = donor.sequence.length() / page_tokens * page_tokens;
    if (donor.document != nullptr || length == 0) {
      return;
    }
    for (int group = 0; group < donor.sequence.groups(); ++group) {
      const BlockTable& table = donor.sequence.table(group);
      if (table.first_page() > table.first_page_needed(length)) {
        return;
      }
    }
    started.sequence.adopt(donor.sequence.share(length));
    started.stamps.assign(donor.stamps.begin(), donor.stamps.begin() + length);
    started.committed = length;
    started.frozen = length;
    donor.frozen = std::max(donor.frozen, length);
    ++reached_["adopted"];
  }

  void grow(SimSequence& target) {
    const int64_t first = target.sequence.length();
    const int64_t length = std::min(first + prng_.range(1, 40), options_.length_max);
    if (length <= first) {
      return;
    }
    const int64_t needed = target.sequence.blocks_needed(length);
    std::optional<BlockReservation> reservation = pool_.reserve(needed + prng_.range(0, 2));
    if (!reservation.has_value()) {
      ++reached_["refused"];
      return;
    }
    BlockReservation spare = reservation->split(reservation->blocks() - needed);
    reservation->merge(spare.split(spare.blocks() / 2));
    target.sequence.grow(length, *reservation);
    reached_["continued_behind_document"] += target.frozen == first && first > 0 ? 1 : 0;
    for (int64_t pair = first; pair < length; ++pair) {
      target.stamps.push_back(++last_stamp_);
      write(target.sequence, pair, last_stamp_);
    }
  }

  void write(const Sequence& target, int64_t pair, uint64_t stamp) {
    for (int group = 0; group < target.groups(); ++group) {
      for_each_list(group, [&](int layer, int head) {
        write_pair(page(), target.segment(group), layer, head, pair,
                   fingerprint(stamp, group, layer, head));
      });
    }
  }

  void truncate(SimSequence& target) {
    const int64_t least = std::max(target.committed, target.frozen);
    const int64_t length = prng_.range(least, target.sequence.length());
    reached_["truncated"] += length < target.sequence.length() ? 1 : 0;
    target.sequence.truncate(length);
    target.stamps.resize(static_cast<size_t>(length));
  }

  void commit(SimSequence& target) {
    const int64_t before = target.sequence.blocks_held();
    const int64_t length = target.sequence.length();
    target.committed = prng_.chance(0.7) ? length : prng_.range(target.committed, length);
    target.sequence.drop_behind(target.committed);
    reached_["window_dropped"] += target.sequence.blocks_held() < before ? 1 : 0;
  }

  void publish_full() {
    const size_t index = pick(sequences_);
    SimSequence& source = sequences_[index];
    if (source.document != nullptr || source.sequence.length() == 0) {
      return;
    }
    const int64_t prefix_length = prng_.chance(0.3) ? 0 : prng_.range(0, source.sequence.length());
    DocumentRecord record{
        Document::full(source.sequence, prefix_length), source.stamps, std::nullopt, {}};
    source.frozen = source.sequence.length();
    readers_.push_back(std::make_shared<const DocumentRecord>(std::move(record)));
    if (prng_.chance(0.5)) {
      sequences_.erase(sequences_.begin() + static_cast<int64_t>(index));
    }
  }

  KeptSets random_kept(const Document& full) {
    ScoreSet scores{full.global_layers(),
                    options_.geometry.kv_heads,
                    full.logical_length() - full.prefix_length(),
                    {}};
    const uint64_t lists = static_cast<uint64_t>(scores.layers) * scores.heads;
    const uint64_t favourite = prng_.below(lists);
    const bool only_favourite = prng_.chance(0.2);
    for (uint64_t list = 0; list < lists; ++list) {
      const float bias = only_favourite && list == favourite ? 100.0f : 0.0f;
      for (int64_t i = 0; i < scores.tokens; ++i) {
        scores.scores.push_back(bias - static_cast<float>(prng_.below(10)));
      }
    }
    int64_t keep = prng_.chance(0.2) ? scores.pairs() : prng_.range(0, scores.pairs());
    if (only_favourite) {
      keep = scores.tokens;
    }
    return std::get<KeptSets>(select_global(scores, keep, 0));
  }

  void compress() {
    if (readers_.empty()) {
      return;
    }
    const Reader full = readers_[pick(readers_)];
    if (full->document->compressed() || full->document->global_layers() == 0) {
      return;
    }
    KeptSets kept = random_kept(*full->document);
    DocumentBuilder builder(full->document, kept);
    std::optional<BlockReservation> reservation = pool_.reserve(builder.blocks_needed());
    if (!reservation.has_value()) {
      ++reached_["refused"];
      return;
    }
    builder.take_blocks(*reservation);
    audit(&builder, reservation->blocks());
    if (prng_.chance(0.2)) {
      ++reached_["abandoned"];
      return;
    }
    for_each_list(0, [&](int layer, int head) {
      copy_pairs(builder, layer, head);
      reached_["empty_head"] += kept.head(layer, head).empty() ? 1 : 0;
    });
    DocumentRecord record{builder.finish(), full->stamps, std::move(kept), full};
    readers_.push_back(std::make_shared<const DocumentRecord>(std::move(record)));
    ++reached_["compressed"];
    const int64_t partial = full->document->prefix_length() % page().page_tokens;
    reached_["partial_prefix"] += partial != 0 ? 1 : 0;
  }

  void copy_pairs(const DocumentBuilder& builder, int layer, int head) {
    int64_t to = builder.target_first();
    for (uint32_t from : builder.source_pairs(layer, head)) {
      copy_pair(page(), builder.source(), builder.target(), layer, head, from, to++);
    }
  }

  void ask_question() {
    if (readers_.empty()) {
      return;
    }
    const Reader document = readers_[pick(readers_)];
    SimSequence question{
        Sequence(pool_, options_.groups, document->document->logical_length()), document, {}};
    grow(question);
    sequences_.push_back(std::move(question));
    ++reached_["questions"];
  }

  void share_or_hold() {
    if (!readers_.empty() && prng_.chance(0.7)) {
      readers_.push_back(readers_[pick(readers_)]);
    } else if (auto reservation = pool_.reserve(prng_.range(1, 3))) {
      held_.push_back(std::move(*reservation));
    }
  }

  void drop_something() {
    const uint64_t choice = prng_.below(3);
    if (choice == 0 && !sequences_.empty()) {
      sequences_.erase(sequences_.begin() + static_cast<int64_t>(pick(sequences_)));
    } else if (choice == 1 && !readers_.empty()) {
      readers_.erase(readers_.begin() + static_cast<int64_t>(pick(readers_)));
    } else if (!held_.empty()) {
      held_.pop_back();
    }
  }

  template <typename Visit>
  void for_each_list(int group, const Visit& f) const {
    const auto layers = static_cast<int>(options_.groups[static_cast<size_t>(group)].layers.size());
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < options_.geometry.kv_heads; ++head) {
        f(layer, head);
      }
    }
  }

  static uint64_t fingerprint(uint64_t stamp, int group, int layer, int head) {
    return Prng(stamp << 16 | static_cast<uint64_t>(group << 8 | layer << 4 | head)).next();
  }

  /// The pairs of a uniform segment from its first page on; row `row` must find its window.
  void verify_uniform(const Segment& segment, int group, const std::vector<uint64_t>& stamps,
                      int64_t row) {
    const int window = options_.groups[static_cast<size_t>(group)].window;
    const int64_t first = segment.first_page * page().page_tokens;
    if (first > (window == 0 ? 0 : std::max<int64_t>(row - window + 1, 0))) {
      return fail("the window of row " + std::to_string(row) + " begins before the table");
    }
    if (segment.uniform_length != static_cast<int64_t>(stamps.size())) {
      return fail("a uniform segment has a wrong length");
    }
    for_each_list(group, [&](int layer, int head) {
      for (int64_t pair = first; pair < segment.uniform_length; ++pair) {
        const uint64_t stamp = stamps[static_cast<size_t>(pair)];
        if (!pair_is(page(), segment, layer, head, pair, fingerprint(stamp, group, layer, head))) {
          fail("wrong contents: group " + std::to_string(group) + " layer " +
               std::to_string(layer) + " head " + std::to_string(head) + " pair " +
               std::to_string(pair));
        }
      }
    });
  }

  void verify_ragged(const Segment& segment, const DocumentRecord& record) {
    const int64_t prefix_length = record.document->prefix_length();
    for_each_list(0, [&](int layer, int head) {
      std::vector<uint64_t> stamps(record.stamps.begin(), record.stamps.begin() + prefix_length);
      for (uint32_t pair : record.kept->head(layer, head)) {
        stamps.push_back(record.stamps[static_cast<size_t>(prefix_length + pair)]);
      }
      if (segment.length(layer, head) != static_cast<int64_t>(stamps.size()) ||
          record.document->retained(layer, head) != static_cast<int64_t>(stamps.size())) {
        return fail("a ragged segment has a wrong length");
      }
      for (size_t i = 0; i < stamps.size(); ++i) {
        if (!pair_is(page(), segment, layer, head, static_cast<int64_t>(i),
                     fingerprint(stamps[i], 0, layer, head))) {
          fail("wrong contents: compressed layer " + std::to_string(layer) + " head " +
               std::to_string(head) + " pair " + std::to_string(i));
        }
      }
    });
  }

  void verify_document(const Segment& segment, int group, const DocumentRecord& record) {
    if (group == 0 && record.kept.has_value()) {
      verify_ragged(segment, record);
    } else {
      verify_uniform(segment, group, record.stamps, record.document->logical_length());
    }
  }

  std::vector<Reader> live_documents() const {
    std::vector<Reader> documents;
    const auto add = [&](const Reader& reader) {
      if (reader != nullptr &&
          std::find(documents.begin(), documents.end(), reader) == documents.end()) {
        documents.push_back(reader);
      }
    };
    std::for_each(readers_.begin(), readers_.end(), add);
    for (const SimSequence& live : sequences_) {
      add(live.document);
    }
    return documents;
  }

  void verify_all() {
    for (const Reader& reader : live_documents()) {
      for (int group = 0; group < reader->document->groups(); ++group) {
        verify_document(reader->document->segment(group), group, *reader);
      }
      reached_["outlived_full_version"] += reader->kept && reader->full_version.expired() ? 1 : 0;
    }
    for (const SimSequence& live : sequences_) {
      for (int group = 0; group < live.sequence.groups(); ++group) {
        KvView view = live.document == nullptr ? KvView() : live.document->document->view(group);
        view.push(live.sequence.segment(group));
        const Segment& own = view.segments[view.count - 1];
        if (own.first_position != live.sequence.first_position()) {
          fail("a sequence's segment has a wrong first position");
        }
        verify_uniform(own, group, live.stamps, live.committed);
      }
    }
    audit(nullptr, 0);
    reached_["hosted"] += options_.hosted ? 1 : 0;
  }

  void audit(const DocumentBuilder* builder, int64_t reserved) {
    std::vector<uint32_t> pins(static_cast<size_t>(pool_.blocks_total()), 0);
    for (const Reader& reader : live_documents()) {
      reader->document->count_refs(pins);
    }
    for (const SimSequence& live : sequences_) {
      live.sequence.count_refs(pins);
    }
    for (const BlockReservation& reservation : held_) {
      reserved += reservation.blocks();
    }
    if (builder != nullptr) {
      builder->count_refs(pins);
    }
    fail(pool_.audit_owners(pins, reserved));
    fail(host_.intact() ? "" : "a block of the host's was written or given back twice");
  }

  SimOptions options_;
  Prng& prng_;
  Reached& reached_;
  HostArena host_;  // idle unless hosted
  BlockPool pool_;  // outlives everything below
  std::vector<SimSequence> sequences_;
  std::vector<Reader> readers_;
  std::vector<BlockReservation> held_;
  uint64_t last_stamp_ = 0;
  uint64_t trace_ = 0;
  std::string failure_;
};

/// Runs a seed and returns its trace. Reports a violation before the pool's destructor can find it
/// too and end the process; a failed CHECK reports the seed as well.
uint64_t simulate(uint64_t seed, Reached& reached) {
  const SeedReport report(seed);
  uint64_t trace = 0;
  {
    Prng prng(seed);
    Simulation simulation(SimOptions::swarm(prng), prng, reached);
    EXPECT_EQ(simulation.run(), "") << "SIM_SEED=" << seed;
    trace = simulation.trace();
  }
  return trace;
}

TEST(PagingSim, Swarm) {
  Reached reached;
  if (const char* seed = std::getenv("SIM_SEED")) {
    simulate(std::strtoull(seed, nullptr, 10), reached);
    return;
  }
  for (uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) {
    simulate(seed, reached);
  }
  for (const char* path : {"refused", "adopted", "truncated", "window_dropped",
                           "continued_behind_document", "compressed", "abandoned", "partial_prefix",
                           "empty_head", "outlived_full_version", "questions", "hosted"}) {
    EXPECT_GT(reached[path], 50) << path;
  }
}

TEST(PagingSim, SameSeedSameRun) {
  Reached reached;
  EXPECT_EQ(simulate(7, reached), simulate(7, reached));
}

}  // namespace
}  // namespace pagezip
