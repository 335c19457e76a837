// What every pair, token and score must be, as pure functions of texts: the oracle of the
// simulation. Nothing here knows about scheduling, blocks or pages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "paging/selection.h"
#include "scheduler/request.h"

namespace pagezip::sim {

inline uint64_t mix(uint64_t a, uint64_t b) { return Prng(a * 0x9e3779b97f4a7c15ull + b).next(); }

inline uint64_t hash_text(const std::string& text) {
  uint64_t h = 17;
  for (const char c : text) {
    h = mix(h, static_cast<unsigned char>(c));
  }
  return h;
}

/// The fingerprints of tokens behind `before`: each depends on all that came first.
inline std::vector<uint64_t> chain(uint64_t before, const std::vector<TokenId>& tokens) {
  std::vector<uint64_t> result;
  for (const TokenId token : tokens) {
    before = mix(before, static_cast<uint64_t>(token) + 1);
    result.push_back(before);
  }
  return result;
}

/// What the "model" says behind a pair, for one of several choices.
inline TokenId next_token(uint64_t fingerprint, uint32_t choice, int vocab) {
  return static_cast<TokenId>(mix(fingerprint, choice + 1000) % static_cast<uint64_t>(vocab));
}

/// Of a prompt's token behind a pair.
inline float logprob(uint64_t fingerprint, TokenId token) {
  return -static_cast<float>(mix(fingerprint, static_cast<uint64_t>(token)) % 100);
}

/// Of few values, so that there are many ties.
inline float score(uint64_t fingerprint, int layer, int head) {
  return -static_cast<float>(mix(fingerprint, static_cast<uint64_t>(layer * 8 + head)) % 12);
}

/// A document's text and, of a compressed one, what it keeps.
struct DocumentTruth {
  const DocumentTruth* parent = nullptr;  // what it extends
  std::vector<uint64_t> pairs;            // fingerprints of its own positions
  int64_t prefix = 0;
  std::optional<KeptSets> kept;

  int64_t first() const { return parent == nullptr ? 0 : parent->length(); }
  int64_t length() const { return first() + static_cast<int64_t>(pairs.size()); }
};

struct JobTruth {
  DocumentSpec spec;
  DocumentTruth full;
  ScoreSet scores;

  /// `parent`: of the document that the job extends, or null.
  JobTruth(const DocumentSpec& job, const DocumentTruth* parent, int layers, int heads)
      : spec(job) {
    std::vector<TokenId> tokens = spec.prefix;
    tokens.insert(tokens.end(), spec.context.begin(), spec.context.end());
    const uint64_t root = hash_text(spec.space);
    full.parent = parent;
    full.pairs = chain(parent == nullptr ? root : mix(root, parent->pairs.back()), tokens);
    full.prefix = static_cast<int64_t>(spec.prefix.size());
    scores = {layers, heads, static_cast<int64_t>(spec.context.size()), {}};
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < heads; ++head) {
        for (size_t i = spec.prefix.size(); i < full.pairs.size(); ++i) {
          scores.scores.push_back(score(full.pairs[i], layer, head));
        }
      }
    }
  }
};

/// A request alone on a machine of its own: all tokens of one choice and their fingerprints.
struct ChoiceTruth {
  const DocumentTruth* document = nullptr;
  std::vector<TokenId> tokens;  // prompt and output, without the end token
  std::vector<uint64_t> pairs;  // of tokens
  FinishReason finish = FinishReason::kLength;
  int64_t position = 0;  // of the first token

  ChoiceTruth(const RequestSpec& spec, uint32_t choice, const DocumentTruth* on, int vocab,
              TokenId end)
      : document(on), tokens(spec.prompt) {
    position = on == nullptr ? 0 : on->length();
    const uint64_t root = hash_text(spec.space);
    const uint64_t before = on == nullptr ? root : mix(root, on->pairs.back());
    pairs = chain(before, tokens);
    for (int64_t i = 0; i < spec.output_max; ++i) {
      const TokenId token = next_token(pairs.back(), choice, vocab);
      if (token == end && !spec.ignore_end) {
        finish = FinishReason::kEnd;
        break;
      }
      tokens.push_back(token);
      pairs.push_back(mix(pairs.back(), static_cast<uint64_t>(token) + 1));
    }
  }
};

/// All that is true in one simulation.
struct Truth {
  std::map<ChoiceKey, ChoiceTruth> choices;
  std::map<WorkId, JobTruth> jobs;
};

}  // namespace pagezip::sim
