// Questions asked one after the other, shown as they are answered and kept for JSON.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/cli/report.h"

namespace pagezip {

/// `full` is null unless both versions are to answer. Returns [{question, text, ...}].
Json ask_questions(Session& session, const Options& options,
                   const std::vector<std::vector<TokenId>>& questions,
                   const std::shared_ptr<const Document>& document,
                   const std::shared_ptr<const Document>& full, Output& output);

}  // namespace pagezip
