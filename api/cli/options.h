// The command line as plain data: every option parsed and in range, nothing opened yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/http/options.h"
#include "engine/backend.h"
#include "engine/pipeline.h"

namespace pagezip {

enum class Verb : uint8_t { kAsk, kCompress, kQuery, kInspect, kScores, kTokenize, kServe };

/// How the model runs.
struct RuntimeOptions {
  std::string model;
  std::optional<std::string> system;  // nothing: the default, where the template takes one
  std::string chat_template;          // a file; "": the model's own
  KvType kv_type = KvType::kF16;
  int page_tokens = 16;
  int64_t pool_mib = 0;  // 0: what the job needs
  int64_t context = 0;   // positions; 0: the model's limit
  int threads = 1;
  Backend backend = Backend::kCpu;
  ActivationType activations = ActivationType::kQ8;
};

/// How a document is compressed.
struct CompressionOptions {
  SelectionOptions selection;
  int64_t chunk_tokens = 2048;
  int64_t min_context = 0;  // shorter documents are not compressed
  ScoreFunction score_function = ScoreFunction::kProbability;
};

struct Options {
  Verb verb = Verb::kAsk;
  RuntimeOptions runtime;
  CompressionOptions compression;
  std::string document;  // text of ask, compress and scores; compressed file of query and inspect
  std::string output;    // of compress and scores
  std::vector<std::string> questions;
  AnswerOptions answer;
  bool compare = false;
  bool json = false;
  std::string text;  // of tokenize
  bool parse_special = false;
  http::ServeOptions serve;  // what isn't in `runtime`
};

struct ParsedOptions {
  Options options;
  std::string print;  // --help or --version: print this and end
};

/// Throws Error(kUsage).
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace pagezip
