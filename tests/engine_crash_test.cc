// Kills an engine while it makes, writes, evicts, reads back and drops documents, and looks at what
// the next one finds.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "base/prng.h"
#include "tests/killed_child.h"
#include "tests/temp_folder.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

constexpr int kDocuments = 12;

/// A tiny engine whose memory holds some of the documents and whose folder holds most.
struct Server : TinyWorld {
  explicit Server(const std::string& folder) : TinyWorld("llama-gqa3") {
    options.folder = folder;
    options.pool_blocks = 60;
    options.file_bytes_max = int64_t{64} << 20;  // no file goes to make room
  }

  DocumentRequest document(int number) const {
    DocumentRequest d;
    d.tenant = "a";
    d.listing.id = "d" + std::to_string(number);
    d.prefix = tokens(5, 1);
    d.context = tokens(80 + 7 * number, static_cast<uint64_t>(100 + number));
    d.prompts = prompts();
    d.versions = {{0.5, false, 0}};
    return d;
  }
  /// "" if there is no answer.
  std::string ask(Engine& e, int number) const {
    GenerateRequest r;
    r.tenant = "a";
    r.document = "d" + std::to_string(number);
    r.prompt = tokens(4, 9);
    r.output_max = 4;
    r.ignore_end = true;
    const auto stream = e.submit(r);
    drive(e);
    std::string text;
    for (const OutputEvent& event : read(*stream)) {
      if (event.token) text += std::to_string(*event.token) + " ";
    }
    return text;
  }
};

/// What the child tells its parent, in a pipe, which outlives it.
struct Note {
  enum class Kind : uint8_t { kStored, kDropping } kind;
  uint8_t document;
};

/// Never returns.
[[noreturn]] void live_and_die(const std::string& folder, int pipe, uint64_t seed) {
  Server server(folder);
  const auto e = server.engine();
  Prng prng(seed);
  const auto note = [&](Note::Kind kind, int document) {
    const Note line{kind, static_cast<uint8_t>(document)};
    if (write(pipe, &line, sizeof(line)) != sizeof(line)) std::_Exit(1);
  };
  for (;;) {
    const auto i = static_cast<int>(prng.below(kDocuments));
    const std::string id = "d" + std::to_string(i);
    if (!e->store().contains(id)) {
      e->create_document(server.document(i));
    } else if (prng.chance(0.15)) {
      note(Note::Kind::kDropping, i);
      e->drop_document({"a", {}}, id);
    } else {
      server.ask(*e, i);
    }
    // At least one, which takes the command in.
    for (int64_t steps = prng.range(1, 60); steps > 0 && e->step(); --steps) {
    }
    for (int d = 0; d < kDocuments; ++d) {
      const auto info = e->store().info("d" + std::to_string(d));
      if (info && !info->versions.empty() && info->versions[0].stored) note(Note::Kind::kStored, d);
    }
  }
}

// What must be in the folder after the child's death.
std::set<int> run_child(const std::string& folder, Prng& prng) {
  const auto notes = static_cast<size_t>(prng.range(0, 150));
  const std::chrono::microseconds moment(prng.range(0, 20'000));
  const uint64_t seed = prng.next();
  std::set<int> stored;
  for (const Note& note : notes_of_killed_child<Note>(
           notes, moment, [&](int pipe) { live_and_die(folder, pipe, seed); })) {
    if (note.kind == Note::Kind::kStored) stored.insert(note.document);
    if (note.kind == Note::Kind::kDropping) stored.erase(note.document);
  }
  return stored;
}

TEST(EngineCrash, NothingAcknowledgedIsLostAndNothingTornIsServed) {
  const bool full = std::getenv("PAGEZIP_TEST_FULL") != nullptr;
  const int points = full ? 200 : 15;
  const TempFolder folder;
  std::map<int, std::string> answers;
  Prng prng(7);
  int served = 0;
  for (int point = 0; point < points && !testing::Test::HasFailure(); ++point) {
    SCOPED_TRACE("point " + std::to_string(point));
    const std::set<int> stored = run_child(folder.path(), prng);
    Server server(folder.path());
    const auto e = server.engine();
    for (const auto& finding : e->findings()) {
      EXPECT_EQ(finding.action, DocumentDirectory::Finding::Action::kRemoved)
          << finding.name << " " << finding.reason;
    }
    for (const int i : stored) {
      EXPECT_TRUE(e->store().contains("d" + std::to_string(i))) << "document " << i << " is lost";
    }
    for (int i = 0; i < kDocuments; ++i) {
      if (!e->store().contains("d" + std::to_string(i))) continue;
      const std::string answer = server.ask(*e, i);
      EXPECT_NE(answer, "") << "document " << i;
      const auto [known, first] = answers.insert({i, answer});
      EXPECT_EQ(answer, known->second) << "document " << i;
      ++served;
    }
    EXPECT_TRUE(e->take_file_errors().valid());
  }
  EXPECT_GT(served, points);
  RecordProperty("served", served);
}

}  // namespace
}  // namespace pagezip
