// `logprobs` of a completion as OpenAI's legacy API has them: four lists with an entry for each
// token.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/tokenizer.h"
#include "scheduler/step_plan.h"

namespace pagezip::http {

/// A prompt that is sent back in front of its completions.
struct EchoedPrompt {
  std::string text;
  TokenId first_token = 0;
  std::vector<TokenLogprob> others;  // the tokens behind it, if log-probabilities are asked for
};

class CompletionLogprobs {
 public:
  /// Borrows the tokenizer.
  explicit CompletionLogprobs(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), decoder_(tokenizer) {}

  /// REQUIRES: nothing was added before.
  void add(const EchoedPrompt& prompt);
  void add(TokenId token, float logprob, const std::vector<TopLogprob>& tops);
  /// What was added since the last call.
  boost::json::object take();

 private:
  std::string name(TokenId token) const;
  void add_text(TokenId token);

  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  int64_t offset_ = 0;  // of the next token's text, in characters
  std::vector<int64_t> offsets_;
  boost::json::array tokens_, logprobs_, tops_;
};

}  // namespace pagezip::http
