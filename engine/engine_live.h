// The engine's own books on requests and on documents that are being made.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"

namespace pagezip {

// Rows that repeat prompts may have beside a chunk's own text.
inline constexpr int64_t kRepeatRows = 256;

/// Throws Error(kUsage) for an id that isn't in the vocabulary.
void check_tokens(std::span<const TokenId> tokens, int vocab);

struct Engine::LiveChoice {
  StreamDecoder decoder;
  StopMatcher stops;
  bool finished = false;
};

struct Engine::LiveRequest {
  std::shared_ptr<OutputStream> stream;
  std::vector<LiveChoice> choices;
  OutputUsage usage;
  size_t open = 0;  // choices
};

struct Engine::LiveTask {
  std::string document;  // id
  std::shared_ptr<DocumentTask> task;
  std::vector<VersionSpec> versions;
  bool is_new = false;  // the document comes and goes with it
  bool keeps_full = false;
  bool keeps_scores = false;
  bool pins = false;                       // at its end
  std::shared_ptr<const Document> parent;  // leased while the job runs
};

// Something that needs a document in memory.
struct Engine::Waiting {
  WorkId id = 0;
  std::string document;
  std::optional<double> keep_ratio;
  // One of the two is called. `was_on_disk`: it had to be read back from its file.
  std::function<void(const DocumentStore::Lease&, bool was_on_disk)> serve;
  std::function<void(RefusalKind, const std::string&)> refuse;
  bool was_on_disk = false;
};

}  // namespace pagezip
