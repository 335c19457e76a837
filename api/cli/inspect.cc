#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "api/cli/report.h"
#include "api/cli/verbs.h"
#include "paging/document_file.h"

namespace pagezip {
namespace {

/// The kept share of every (layer, head) of a document's own pairs.
class KeptMap {
 public:
  explicit KeptMap(const DocumentHeader& header)
      : lengths_(header.lengths),
        prefix_(static_cast<int64_t>(header.identity.prefix_ids.size())),
        tokens_(static_cast<int64_t>(header.identity.context_ids.size())),
        heads_(header.identity.shape.kv_heads) {}

  int heads() const { return heads_; }
  int layers() const { return static_cast<int>(lengths_.size()) / heads_; }
  int64_t kept(int layer, int head) const {
    return int64_t{lengths_[static_cast<size_t>(int64_t{layer} * heads_ + head)]} - prefix_;
  }
  double share(int layer, int head) const {
    return tokens_ == 0 ? 0 : static_cast<double>(kept(layer, head)) / static_cast<double>(tokens_);
  }
  double share(int layer) const {
    double sum = 0;
    for (int head = 0; head < heads_; ++head) {
      sum += share(layer, head);
    }
    return sum / heads_;
  }
  double share() const {
    double sum = 0;
    for (int layer = 0; layer < layers(); ++layer) {
      sum += share(layer);
    }
    return layers() == 0 ? 0 : sum / layers();
  }

 private:
  const std::vector<uint32_t>& lengths_;  // [layers, heads]
  int64_t prefix_;
  int64_t tokens_;
  int heads_;
};

// Percents where they fit a terminal, else tenths: 0 to 9, and # for all.
std::string heatmap(const KeptMap& map) {
  constexpr int kPercentHeads = 10;
  constexpr int kBar = 20;
  const bool in_percent = map.heads() <= kPercentHeads;
  std::string text = in_percent
                         ? "\n  % kept by layer and KV head\n\n  layer "
                         : "\n  tenths kept by layer (row) and KV head, # for all\n\n  layer ";
  for (int head = 0; in_percent && head < map.heads(); ++head) {
    text += fmt::format("{:>5}", head);
  }
  text += in_percent ? "    all\n" : "\n";
  for (int layer = 0; layer < map.layers(); ++layer) {
    text += fmt::format("  {:>5} {}", layer, in_percent ? "" : " ");
    for (int head = 0; head < map.heads(); ++head) {
      const double share = map.share(layer, head);
      text += in_percent   ? fmt::format("{:>5.0f}", 100 * share)
              : share >= 1 ? std::string("#")
                           : fmt::format("{}", static_cast<int>(10 * share));
    }
    const auto filled =
        static_cast<size_t>(std::lround(kBar * std::clamp(map.share(layer), 0., 1.)));
    text += fmt::format("  {:>5.0f} {}\n", 100 * map.share(layer), std::string(filled, '#'));
  }
  return text;
}

std::string identity_rows(const DocumentHeader& header, const KeptMap& map) {
  const DocumentIdentity& identity = header.identity;
  const PageLayout& page = identity.shape.page;
  const VersionIdentity& version = identity.version;
  const ModelIdentity& model = identity.shape.model;
  const std::string& name = header.listing.name;
  return (name.empty() ? "" : row("name", name)) +
         row("document",
             fmt::format("{} tokens, behind {} of prompt prefix",
                         group_digits(static_cast<int64_t>(identity.context_ids.size())),
                         identity.prefix_ids.size())) +
         row("file", fmt::format("{:.2f} MiB", mib(header.file_bytes))) +
         (version.full ? row("kept", "all pairs: not compressed")
                       : row("kept", fmt::format("{:.1f} % of pairs, asked for {:g}",
                                                 100 * map.share(), version.keep_ratio)) +
                             row("scorer", fmt::format("{} {}, chunks of {} tokens",
                                                       identity.scorer, identity.scorer_version,
                                                       group_digits(identity.chunk_tokens))) +
                             row("selector", fmt::format("{}, at least {} pairs per head",
                                                         version.selector, version.min_per_head))) +
         row("model", fmt::format("fingerprint {:016x}, tokenizer {:016x}", model.weights,
                                  model.tokenizer)) +
         row("",
             fmt::format("RoPE {:016x}, chat template {:016x}", model.rope, model.chat_template)) +
         row("KV", fmt::format("{} scored layers, {} heads of {}, pages of {} tokens", map.layers(),
                               map.heads(), page.head_dim, page.page_tokens)) +
         row("made by", identity.provenance);
}

Json header_json(const DocumentHeader& header, const KeptMap& map) {
  const DocumentIdentity& identity = header.identity;
  Json retained = Json::array();
  for (int layer = 0; layer < map.layers(); ++layer) {
    Json heads = Json::array();
    for (int head = 0; head < map.heads(); ++head) {
      heads.push_back(map.kept(layer, head));
    }
    retained.push_back(std::move(heads));
  }
  const VersionIdentity& version = identity.version;
  const ModelIdentity& model = identity.shape.model;
  return {{"name", header.listing.name},
          {"created_at", header.listing.created_s},
          {"compressed", !version.full},
          {"tokens", identity.context_ids.size()},
          {"prefix_tokens", identity.prefix_ids.size()},
          {"keep_ratio", version.keep_ratio},
          {"achieved_ratio", map.share()},
          {"scorer", identity.scorer},
          {"scorer_version", identity.scorer_version},
          {"chunk_tokens", identity.chunk_tokens},
          {"selector", version.selector},
          {"min_per_head", version.min_per_head},
          {"model_fingerprint", fmt::format("{:016x}", model.weights)},
          {"tokenizer", fmt::format("{:016x}", model.tokenizer)},
          {"rope", fmt::format("{:016x}", model.rope)},
          {"chat_template", fmt::format("{:016x}", model.chat_template)},
          {"scores", header.has_scores},
          {"head_dim", identity.shape.page.head_dim},
          {"page_tokens", identity.shape.page.page_tokens},
          {"provenance", identity.provenance},
          {"file_bytes", header.file_bytes},
          {"retained", std::move(retained)}};
}

}  // namespace

void run_inspect(const Options& options) {
  const DocumentHeader header = read_document_header(options.document);
  const KeptMap map(header);
  Output output;
  output.write(options.json ? json_line(header_json(header, map))
                            : identity_rows(header, map) + heatmap(map));
}

}  // namespace pagezip
