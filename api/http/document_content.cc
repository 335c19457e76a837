// What a document keeps, its file, and questions about it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/value_from.hpp>
#include <charconv>
#include <memory>

#include "api/http/api_error.h"
#include "api/http/documents.h"
#include "api/http/generation.h"
#include "api/http/json_text.h"
#include "api/http/target.h"
#include "base/error.h"
#include "engine/utf8.h"
#include "paging/document_file.h"

namespace pagezip::http {
namespace {

constexpr size_t kPositionBuckets = 64;
constexpr size_t kSlice = 256 << 10;

std::optional<double> ratio_query(const RequestHead& head) {
  const auto text = head.query_value("ratio");
  if (!text) {
    return std::nullopt;
  }
  double ratio = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), ratio);
  if (error != std::errc() || end != text->data() + text->size() || !(ratio > 0 && ratio <= 1)) {
    throw ApiError(400, "invalid_value", "'ratio' must be above 0 and at most 1", "ratio");
  }
  return ratio;
}

std::optional<int> index_query(const RequestHead& head, std::string_view name, int size) {
  const auto text = head.query_value(name);
  if (!text) {
    return std::nullopt;
  }
  int index = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), index);
  if (error != std::errc() || end != text->data() + text->size() || index < 0 || index >= size) {
    throw ApiError(400, "invalid_value",
                   fmt::format("'{}' must be a whole number from 0 to {}", name, size - 1),
                   std::string(name));
  }
  return index;
}

// The sets that were kept, once more from the same scores.
std::optional<KeptSets> kept_sets(const VersionDetail& detail) {
  if (detail.scores == nullptr || detail.version.full) {
    return std::nullopt;
  }
  Selection selection = select(*detail.scores, version_spec(detail.version));
  KeptSets* kept = std::get_if<KeptSets>(&selection);
  return kept == nullptr ? std::nullopt : std::optional(std::move(*kept));
}

// The scores, from the file if only that has them. Null, so no positions, if the file has just gone
// or is broken: whoever needs the document finds out what is wrong with it.
std::shared_ptr<const ScoreSet> scores_of(const VersionDetail& detail) {
  if (detail.scores != nullptr || detail.file.empty()) {
    return detail.scores;
  }
  try {
    return read_document_scores(detail.file);
  } catch (const Error&) {
    return nullptr;
  }
}

json::array position_histogram(const KeptSets& kept, int64_t tokens) {
  const size_t buckets = std::min<size_t>(kPositionBuckets, static_cast<size_t>(tokens));
  std::vector<int64_t> counts(buckets);
  for (const uint32_t position : kept.pairs) {
    ++counts[static_cast<size_t>(position) * buckets / static_cast<size_t>(tokens)];
  }
  json::array fractions;
  for (size_t b = 0; b < buckets; ++b) {
    const int64_t begin = (static_cast<int64_t>(b) * tokens + static_cast<int64_t>(buckets) - 1) /
                          static_cast<int64_t>(buckets);
    const int64_t end = (static_cast<int64_t>(b + 1) * tokens + static_cast<int64_t>(buckets) - 1) /
                        static_cast<int64_t>(buckets);
    const int64_t all = (end - begin) * kept.layers * kept.heads;
    fractions.emplace_back(all == 0 ? 0
                                    : static_cast<double>(counts[b]) / static_cast<double>(all));
  }
  return fractions;
}

json::array texts_of(const std::vector<TokenId>& tokens, const Tokenizer& tokenizer) {
  json::array texts;
  for (const TokenId token : tokens) {
    texts.emplace_back(to_valid_utf8(tokenizer.piece(token)));
  }
  return texts;
}

// `layer_numbers`: of the layers that are compressed, in the model.
json::object retention_json(const VersionDetail& detail, const std::vector<int>& layer_numbers,
                            int heads, std::optional<int> layer, std::optional<int> head,
                            const Tokenizer& tokenizer) {
  const std::vector<TokenId>& context = detail.identity->context_ids;
  const auto tokens = static_cast<int64_t>(context.size());
  json::object reply;
  reply["object"] = "document.retention";
  reply["ratio"] = detail.version.full ? 1 : detail.version.keep_ratio;
  const auto layers = static_cast<int>(layer_numbers.size());
  reply["layers"] = layers;
  reply["kv_heads"] = heads;
  reply["tokens"] = tokens;
  reply["layer_numbers"] = json::value_from(layer_numbers);
  const bool ragged = !detail.shape.lengths.empty();
  json::array counts;
  for (int l = 0; l < layers; ++l) {
    json::array row;
    for (int h = 0; h < heads; ++h) {
      const auto list =
          static_cast<size_t>(l) * static_cast<size_t>(heads) + static_cast<size_t>(h);
      row.emplace_back(ragged ? int64_t{detail.shape.lengths[list]} - detail.shape.prefix_length
                              : tokens);
    }
    counts.push_back(std::move(row));
  }
  reply["kept"] = std::move(counts);
  const std::optional<KeptSets> kept = kept_sets(detail);
  reply["by_position"] = kept ? json::value(position_histogram(*kept, tokens)) : json::value();
  if (layer && head) {
    reply["layer"] = *layer;
    reply["head"] = *head;
    reply["texts"] = texts_of(context, tokenizer);
    json::array positions;
    if (kept) {
      for (const uint32_t position : kept->head(*layer, *head)) {
        positions.emplace_back(position);
      }
    }
    reply["positions"] = kept ? json::value(std::move(positions)) : json::value();
  }
  return reply;
}

// What a chat client would send.
json::array question_about(const std::string& id, const std::string& question) {
  json::array parts;
  parts.push_back(json::object{{"type", "file"}, {"file", json::object{{"file_id", id}}}});
  parts.push_back(json::object{{"type", "text"}, {"text", question}});
  return {json::object{{"role", "user"}, {"content", std::move(parts)}}};
}

struct OpenedFile {
  explicit OpenedFile(const std::string& path) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenedFile() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;
  int fd;
};

struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// RFC 9110 §14: one range; others are served whole, as it allows. Throws ApiError(416).
std::optional<ByteRange> range_of(std::string_view header, uint64_t size) {
  if (!header.starts_with("bytes=") || header.find(',') != std::string_view::npos) {
    return std::nullopt;
  }
  header.remove_prefix(6);
  const size_t dash = header.find('-');
  if (dash == std::string_view::npos) {
    return std::nullopt;
  }
  const auto number = [](std::string_view text) -> std::optional<uint64_t> {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                    : std::nullopt;
  };
  const auto first = number(header.substr(0, dash));
  const auto last = number(header.substr(dash + 1));
  if (!first && !last) {
    return std::nullopt;
  }
  ByteRange range{first.value_or(0), size};
  if (!first) {
    range.begin = size - std::min(size, *last);  // the last so many
  } else if (last) {
    range.end = std::min(size, *last < UINT64_MAX ? *last + 1 : *last);
  }
  if (range.begin >= range.end) {
    throw ApiError(416, "range_not_satisfiable", "the document's file has no such bytes")
        .with_header("Content-Range", fmt::format("bytes */{}", size));
  }
  return range;
}

}  // namespace

asio::awaitable<void> Documents::retention(Exchange& exchange, const Tenant& tenant,
                                           const std::string& id) {
  const RequestHead& head = exchange.head();
  const std::vector<KvGroup>& groups = service_.model().model().kv_groups();
  const std::vector<int>& layers = groups.front().layers;
  const int heads = service_.model().model().config().kv_heads;
  const std::optional<int> layer = index_query(head, "layer", static_cast<int>(layers.size()));
  const std::optional<int> kv_head = index_query(head, "head", heads);
  std::optional<VersionDetail> detail = co_await service_.answer(
      service_.engine().version_detail(tenant.requester(), id, ratio_query(head)));
  if (!detail) {
    co_await need(tenant, id);
    throw ApiError(409, "document_not_ready", "nothing of the document is there yet")
        .with_header("Retry-After", "2");
  }
  const std::function<std::string()> work = [detail = std::move(*detail), layers, heads, layer,
                                             kv_head, this]() mutable {
    detail.scores = scores_of(detail);
    return to_text(
        retention_json(detail, layers, heads, layer, kv_head, service_.model().tokenizer()));
  };
  std::string text = co_await service_.on_worker(work);
  Reply answer = json_text(std::move(text));
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> Documents::content(Exchange& exchange, const Tenant& tenant,
                                         const std::string& id) {
  const RequestHead& head = exchange.head();
  if (service_.options().engine.folder.empty()) {
    throw ApiError(501, "not_supported",
                   "documents have no files: start the server with --documents");
  }
  const std::optional<VersionDetail> detail = co_await service_.answer(
      service_.engine().version_detail(tenant.requester(), id, ratio_query(head)));
  if (!detail || detail->file.empty()) {
    co_await need(tenant, id);
    throw ApiError(409, "document_not_ready", "the document's file isn't written yet")
        .with_header("Retry-After", "2");
  }
  // Once it is open, it stays readable even if the document goes.
  const OpenedFile file(detail->file);
  struct stat status = {};
  if (file.fd < 0 || fstat(file.fd, &status) != 0) {
    throw ApiError(409, "document_not_ready", "the document's file is gone: use the document");
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  Reply reply;
  reply.content_type = "application/vnd.pagezip.document";
  reply.headers.emplace_back("Accept-Ranges", "bytes");
  reply.headers.emplace_back(
      "ETag", fmt::format("\"{}-{}-{}\"", id, status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
  ByteRange range{0, size};
  if (const auto wanted = range_of(head.header("range").value_or(""), size)) {
    range = *wanted;
    reply.status = 206;
    reply.headers.emplace_back("Content-Range",
                               fmt::format("bytes {}-{}/{}", range.begin, range.end - 1, size));
  }
  reply.stream_bytes = range.end - range.begin;
  co_await exchange.start_stream(std::move(reply));
  std::string slice(kSlice, '\0');
  while (range.begin < range.end) {
    const auto wanted = std::min<uint64_t>(slice.size(), range.end - range.begin);
    const ssize_t got = pread(file.fd, slice.data(), wanted, static_cast<off_t>(range.begin));
    if (got <= 0) {
      throw ClientGone();  // the promised length can't be kept any more
    }
    co_await exchange.write(std::string_view(slice).substr(0, static_cast<size_t>(got)));
    range.begin += static_cast<uint64_t>(got);
  }
  co_await exchange.end_stream();
}

asio::awaitable<void> Documents::query(Exchange& exchange, const Tenant& tenant,
                                       const std::string& id) {
  json::object body = co_await read_json(exchange, service_);
  const std::string question = Fields(body).need_text("query");
  if (question.empty()) {
    throw ApiError(400, "invalid_value", "'query' is empty", "query");
  }
  body["messages"] = question_about(id, question);
  co_await generate(exchange, read_chat(body, service_, tenant), service_, tenant);
}

}  // namespace pagezip::http
