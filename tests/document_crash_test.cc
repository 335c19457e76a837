// What a folder of documents holds after power loss, failing disks and kill -9, at every point.
//
// A Ledger says what each file may be: what was acknowledged must be so, and what was under way may
// be as before or as after. Whatever is listed must load and be the document that was written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paging/document_directory.h"
#include "tests/document_world.h"
#include "tests/faulty_files.h"
#include "tests/killed_child.h"
#include "tests/temp_folder.h"

namespace pagezip {
namespace {

constexpr int64_t kSlice = 2000;
constexpr int64_t kBudget = 1 << 20;

DocumentListing listing_of(const FileKey& key, uint64_t revision) {
  DocumentListing listing;
  listing.id = key.id;
  listing.name = key.id + " named for the " + std::to_string(revision) + "th time";
  listing.revision = revision;
  return listing;
}

/// What a file may be: absent (nothing), or present with the listing of a revision.
class Ledger {
 public:
  using State = std::optional<uint64_t>;

  void start(const FileKey& key, State next) {
    if (states_[key].empty()) states_[key].push_back(std::nullopt);
    states_[key].push_back(next);
  }
  void acknowledge(const FileKey& key) { states_[key] = {states_[key].back()}; }
  void settle(const FileKey& key, State state) { states_[key] = {state}; }
  bool may_be(const FileKey& key, State state) const {
    const auto found = states_.find(key);
    if (found == states_.end()) return !state.has_value();
    return std::find(found->second.begin(), found->second.end(), state) != found->second.end();
  }
  std::vector<FileKey> keys() const {
    std::vector<FileKey> keys;
    for (const auto& [key, states] : states_) keys.push_back(key);
    return keys;
  }

 private:
  std::map<FileKey, std::vector<State>> states_;
};

/// Three documents of different kinds, and what must be true of any folder of theirs.
class Library {
 public:
  Library() {
    Prng prng(3);
    for (const char* id : {"doc_a", "doc_b", "doc_c"}) {
      const auto full = make_full(world_, 25 + 9 * static_cast<int64_t>(documents_.size()), 5);
      documents_[id] =
          documents_.size() == 1
              ? full
              : compress(world_, full, random_kept(world_, full->logical_length() - 5, prng));
      scores_[id] = documents_.size() == 1 ? nullptr : make_scores(world_, *full);
    }
  }

  const KvShape& shape() const { return world_.shape; }
  DocumentImage image(const FileKey& key) const {
    const Document& document = *documents_.at(key.id);
    return {document, identity_of(world_, document), scores_.at(key.id)};
  }

  void expect_loads(DocumentDirectory& directory, const FileKey& key) {
    const auto reader = directory.read(key);
    ASSERT_NO_FATAL_FAILURE(expect_reads(world_, *reader, kSlice, *documents_.at(key.id)));
    const auto& scores = scores_.at(key.id);
    ASSERT_EQ(reader->scores() != nullptr, scores != nullptr);
    if (scores == nullptr) return;
    EXPECT_EQ(reader->scores()->scores, scores->scores);
  }

  /// Opens the folder, and compares it with the ledger.
  void expect_sound(Files& files, const std::string& folder, const Ledger& ledger) {
    DocumentDirectory directory(files, folder, world_.shape, kBudget);
    std::map<FileKey, uint64_t> listed;
    for (const auto& [key, header] : directory.take_files()) {
      const uint64_t revision = header.listing.revision;
      EXPECT_TRUE(ledger.may_be(key, revision)) << key.id << " revision " << revision;
      EXPECT_EQ(header.listing, listing_of(key, revision));
      expect_loads(directory, key);
      listed[key] = revision;
    }
    for (const FileKey& key : ledger.keys()) {
      if (!listed.contains(key)) {
        EXPECT_TRUE(ledger.may_be(key, std::nullopt)) << key.id << " is lost";
      }
    }
    for (const auto& finding : directory.findings()) {
      EXPECT_EQ(finding.action, DocumentDirectory::Finding::Action::kRemoved) << finding.name;
    }
    std::vector<std::string> names;
    ASSERT_EQ(files.list(folder, names), 0);
    EXPECT_EQ(names.size(), listed.size() + 1);  // and the lock
  }

 private:
  World world_{{KvType::kF16, KvType::kBF16, 16, 16}, 2, 1, 1, 8, 64};
  std::map<std::string, std::shared_ptr<const Document>> documents_;
  std::map<std::string, std::shared_ptr<const ScoreSet>> scores_;
};

/// Works in a folder and keeps the ledger. Stops when the power is gone; goes on after an error.
class Worker {
 public:
  Worker(Library& library, FaultyFiles& files, Ledger& ledger)
      : library_(library), files_(files), ledger_(ledger) {}

  void run() {
    attempt([&] { directory_.emplace(files_, "folder", library_.shape(), kBudget); });
    if (!directory_) return;
    write({"doc_a", 1});
    write({"doc_b", 1});
    update({"doc_a", 1}, 2);
    load({"doc_a", 1});
    update({"doc_a", 1}, 3);
    remove({"doc_b", 1});
    write({"doc_a", 2});
    give_up({"doc_c", 1});
    write({"doc_b", 2});
    remove({"doc_a", 1});
    write({"doc_c", 1});
    update({"doc_b", 2}, 2);
    update({"doc_b", 2}, 3);
    remove({"doc_a", 2});
  }

 private:
  template <typename Action>
  bool attempt(const Action& action) {
    if (files_.is_off()) return false;
    try {
      action();
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void write(const FileKey& key) {
    if (files_.is_off() || directory_->contains(key)) return;
    ledger_.start(key, 1);
    const bool done = attempt([&] {
      const auto write = directory_->write(key, library_.image(key), listing_of(key, 1));
      ASSERT_NE(write, nullptr);
      while (write->step(kSlice)) {
      }
    });
    EXPECT_EQ(directory_->contains(key), done);
    if (done) ledger_.acknowledge(key);
  }
  void update(const FileKey& key, uint64_t revision) {
    if (files_.is_off() || !directory_->contains(key)) return;
    ledger_.start(key, revision);
    if (attempt([&] { directory_->update(key, listing_of(key, revision)); })) {
      ledger_.acknowledge(key);
    }
  }
  void remove(const FileKey& key) {
    if (files_.is_off()) return;
    ledger_.start(key, std::nullopt);
    if (attempt([&] { directory_->remove(key); })) ledger_.acknowledge(key);
  }
  void load(const FileKey& key) {
    if (directory_->contains(key)) attempt([&] { library_.expect_loads(*directory_, key); });
  }
  void give_up(const FileKey& key) {
    attempt([&] {
      const auto write = directory_->write(key, library_.image(key), listing_of(key, 1));
      write->step(kSlice);
    });
    EXPECT_FALSE(directory_->contains(key));
  }

  Library& library_;
  FaultyFiles& files_;
  Ledger& ledger_;
  std::optional<DocumentDirectory> directory_;
};

int64_t calls_of_a_run(Library& library) {
  FaultyFiles files;
  Ledger ledger;
  Worker(library, files, ledger).run();
  const int64_t calls = files.calls();
  library.expect_sound(files, "folder", ledger);
  return calls;
}

constexpr FaultyFiles::Survival kSurvivals[] = {
    FaultyFiles::Survival::kSynced, FaultyFiles::Survival::kEverything,
    FaultyFiles::Survival::kRandom, FaultyFiles::Survival::kRandom,
    FaultyFiles::Survival::kRandom, FaultyFiles::Survival::kRandom};

TEST(DocumentCrash, PowerLossAtEveryCall) {
  Library library;
  Prng prng(11);
  const int64_t calls = calls_of_a_run(library);
  int64_t points = 0;
  for (int64_t call = 1; call <= calls && !::testing::Test::HasFailure(); ++call) {
    FaultyFiles files;
    Ledger ledger;
    files.set_fault(FaultyFiles::Fault::kPowerLoss, call);
    Worker(library, files, ledger).run();
    ASSERT_TRUE(files.is_off());
    for (const FaultyFiles::Survival survival : kSurvivals) {
      SCOPED_TRACE("call " + std::to_string(call) + ", point " + std::to_string(++points));
      const auto once = files.restarted(survival, prng);
      library.expect_sound(*files.restarted(survival, prng), "folder", ledger);
      // And again while the folder is opened.
      once->set_fault(FaultyFiles::Fault::kPowerLoss, prng.range(1, 12));
      try {
        DocumentDirectory(*once, "folder", library.shape(), kBudget);
      } catch (const Error&) {
      }
      library.expect_sound(*once->restarted(survival, prng), "folder", ledger);
    }
  }
  RecordProperty("calls", std::to_string(calls));
  RecordProperty("points", std::to_string(points));
  EXPECT_GT(calls, 80);
}

TEST(DocumentCrash, ErrorsAtEveryCall) {
  Library library;
  Prng prng(12);
  const int64_t calls = calls_of_a_run(library);
  for (const auto fault : {FaultyFiles::Fault::kIoError, FaultyFiles::Fault::kNoSpace,
                           FaultyFiles::Fault::kShortWrite}) {
    for (const bool stays : {false, true}) {
      for (int64_t call = 1; call <= calls && !::testing::Test::HasFailure(); ++call) {
        SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + ", call " +
                     std::to_string(call) + (stays ? " and later" : ""));
        FaultyFiles files;
        Ledger ledger;
        files.set_fault(fault, call, stays);
        Worker(library, files, ledger).run();
        files.set_fault(FaultyFiles::Fault::kNone, 0);
        library.expect_sound(files, "folder", ledger);
        library.expect_sound(*files.restarted(FaultyFiles::Survival::kRandom, prng), "folder",
                             ledger);
      }
    }
  }
}

// What a failed sync left in memory looks like a listing, but the disk may still have the old one
// alone.
TEST(DocumentCrash, PowerLossAfterAFailedChange) {
  Library library;
  Prng prng(14);
  const FileKey key{"doc_a", 1};
  for (int64_t error_call = 1; error_call <= 6; ++error_call) {
    for (int64_t loss_call = 1; loss_call <= 6; ++loss_call) {
      FaultyFiles files;
      Ledger ledger;
      {
        DocumentDirectory directory(files, "folder", library.shape(), kBudget);
        const auto write = directory.write(key, library.image(key), listing_of(key, 1));
        while (write->step(kSlice)) {
        }
        for (uint64_t revision = 1; revision <= 4; ++revision) ledger.start(key, revision);
        files.set_fault(FaultyFiles::Fault::kIoError, files.calls() + error_call);
        for (uint64_t revision = 2; revision <= 4; ++revision) {
          try {
            directory.update(key, listing_of(key, revision));
          } catch (const Error&) {
            files.set_fault(FaultyFiles::Fault::kPowerLoss, files.calls() + loss_call);
          }
        }
      }
      for (const FaultyFiles::Survival survival : kSurvivals) {
        library.expect_sound(*files.restarted(survival, prng), "folder", ledger);
      }
    }
  }
}

TEST(DocumentCrash, ShortWritesAreNoErrors) {
  Library library;
  FaultyFiles files;
  Ledger ledger;
  files.set_fault(FaultyFiles::Fault::kShortWrite, 1, true);
  Worker(library, files, ledger).run();
  EXPECT_FALSE(ledger.may_be({"doc_c", 1}, std::nullopt));
  EXPECT_FALSE(ledger.may_be({"doc_b", 2}, 2));
  library.expect_sound(files, "folder", ledger);
}

// ---- kill -9 ------------------------------------------------------------------------------------

/// One line of the child's diary, in a pipe, which outlives it.
struct Note {
  enum class Kind : uint8_t { kStart, kAcknowledge } kind;
  uint8_t document;
  uint8_t is_present;  // what the file becomes
  uint32_t version;
  uint64_t revision;
};

/// Writes, renames and removes documents until it is killed. Never returns.
[[noreturn]] void live_and_die(Library& library, const std::string& folder, int pipe,
                               uint64_t seed) {
  const char* ids[] = {"doc_a", "doc_b", "doc_c"};
  DocumentDirectory directory(system_files(), folder, library.shape(), kBudget);
  Prng prng(seed);
  std::map<FileKey, uint64_t> present;
  for (const auto& file : directory.take_files()) {
    present[file.key] = file.header.listing.revision;
  }
  const auto note = [&](const Note& line) {
    if (write(pipe, &line, sizeof(line)) != sizeof(line)) std::_Exit(1);
  };
  for (;;) {
    const auto document = static_cast<uint8_t>(prng.below(3));
    const FileKey key{ids[document], static_cast<uint32_t>(prng.below(3))};
    const auto found = present.find(key);
    Note change{Note::Kind::kStart, document, 1, key.version, 1};
    if (found == present.end()) {
      note(change);
      const auto write = directory.write(key, library.image(key), listing_of(key, 1));
      while (write->step(kSlice)) {
      }
      present[key] = 1;
    } else if (prng.chance(0.5)) {
      change.revision = found->second + 1;
      note(change);
      directory.update(key, listing_of(key, change.revision));
      found->second = change.revision;
    } else {
      change.is_present = 0;
      note(change);
      directory.remove(key);
      present.erase(found);
    }
    change.kind = Note::Kind::kAcknowledge;
    note(change);
  }
}

/// Runs a child for a while and kills it. Its notes go into the ledger.
void run_child(Library& library, const std::string& folder, Prng& prng, Ledger& ledger) {
  const auto notes = static_cast<size_t>(prng.range(0, 60));
  const std::chrono::microseconds moment(prng.range(0, 5'000));
  const uint64_t seed = prng.next();
  for (const Note& note : notes_of_killed_child<Note>(
           notes, moment, [&](int pipe) { live_and_die(library, folder, pipe, seed); })) {
    const char* ids[] = {"doc_a", "doc_b", "doc_c"};
    const FileKey key{ids[note.document], note.version};
    if (note.kind == Note::Kind::kAcknowledge) {
      ledger.acknowledge(key);
    } else {
      ledger.start(key, note.is_present == 1 ? Ledger::State(note.revision) : std::nullopt);
    }
  }
}

TEST(DocumentCrash, KillAtRandomPoints) {
  const bool full = std::getenv("PAGEZIP_TEST_FULL") != nullptr;
  const int points = full ? 200 : 40;
  const TempFolder temporary;
  const std::string& folder = temporary.path();
  Library library;
  Ledger ledger;
  Prng prng(13);
  size_t listed = 0;
  for (int point = 0; point < points && !::testing::Test::HasFailure(); ++point) {
    SCOPED_TRACE("point " + std::to_string(point));
    run_child(library, folder, prng, ledger);
    library.expect_sound(system_files(), folder, ledger);
    // From here on it is as it was found, and durable: nothing was lost but the process.
    DocumentDirectory directory(system_files(), folder, library.shape(), kBudget);
    for (const FileKey& key : ledger.keys()) ledger.settle(key, std::nullopt);
    for (const auto& file : directory.take_files()) {
      ledger.settle(file.key, file.header.listing.revision);
      ++listed;
    }
  }
  EXPECT_GT(listed, static_cast<size_t>(points));
  RecordProperty("points", points);
}

}  // namespace
}  // namespace pagezip
