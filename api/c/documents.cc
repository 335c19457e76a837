// Tier 2 of the C ABI: compressed documents in the caller's arena.
#include <numeric>
#include <utility>

#include "api/c/pages.h"
#include "kernels/kernels.h"
#include "paging/document.h"
#include "paging/document_file.h"
#include "paging/selection.h"

namespace pagezip::c_api {
namespace {

class CallbackSource : public BlockSource {
 public:
  explicit CallbackSource(const pagezip_block_source& callbacks) : callbacks_(callbacks) {}
  bool take(std::span<uint32_t> ids) override {
    return callbacks_.take(callbacks_.user, ids.data(), ids.size()) == 0;
  }
  void give_back(std::span<const uint32_t> ids) noexcept override {
    callbacks_.give_back(callbacks_.user, ids.data(), ids.size());
  }

 private:
  pagezip_block_source callbacks_;
};

struct Pool {
  Pool(const KvGeometry& geometry, const pagezip_pool_options& options,
       const pagezip_block_source& callbacks)
      : source(callbacks),
        pool(geometry, {static_cast<std::byte*>(options.base), options.blocks,
                        options.source == nullptr ? nullptr : &source}) {}

  CallbackSource source;
  BlockPool pool;
};

KvShape shape_of(const BlockPool& pool, const uint64_t model[4]) {
  require(model != nullptr, "model is null");
  std::vector<int> layers(static_cast<size_t>(pool.geometry().layers_per_block));
  std::iota(layers.begin(), layers.end(), 0);
  const KvGroup group{std::move(layers), 0};
  return make_kv_shape({model[0], model[1], model[2], model[3]}, {&group, 1}, pool.geometry());
}

}  // namespace
}  // namespace pagezip::c_api

using namespace pagezip;         // NOLINT(google-build-using-namespace): handles and entries are
using namespace pagezip::c_api;  // NOLINT(google-build-using-namespace): outside of it

struct pagezip_pool {
  std::shared_ptr<c_api::Pool> shared;
};

struct pagezip_document {
  std::shared_ptr<c_api::Pool> pool;  // outlives the pages
  std::shared_ptr<const Document> document;
  DocumentIdentity identity;  // without token ids if the caller gave none
  std::vector<int32_t> tokens;
};

namespace pagezip::c_api {
namespace {

std::shared_ptr<Pool> create_pool(const pagezip_pool_options* from) {
  const pagezip_pool_options options = read_struct(from, "pagezip_pool_options");
  KvGeometry geometry;
  geometry.page = read_page(options.page);
  require(options.layers > 0 && options.layers <= kLayersMax && options.kv_heads > 0 &&
              options.kv_heads <= kHeadsMax,
          "layers or kv_heads are not 1 to 4096");
  geometry.kv_heads = options.kv_heads;
  geometry.layers_per_block = options.layers;
  const int32_t order = number_of(options.order);
  require(order == PAGEZIP_LAYERS_FIRST || order == PAGEZIP_HEADS_FIRST,
          "an order of blocks that doesn't exist");
  geometry.order = order == PAGEZIP_LAYERS_FIRST ? BlockOrder::kLayerMajor : BlockOrder::kHeadMajor;
  require(
      options.base != nullptr && reinterpret_cast<uintptr_t>(options.base) % PageLayout::kUnit == 0,
      "base is null or not aligned to 64 bytes");
  require(options.blocks > 0 && options.blocks < (int64_t{1} << 32) / geometry.pages_per_block(),
          "blocks is 0, or they have 2^32 pages or more");
  pagezip_block_source source{};
  if (options.source != nullptr) {
    source = read_struct(options.source, "pagezip_block_source");
    require(source.take != nullptr && source.give_back != nullptr, "a callback is null");
  }
  return std::make_shared<Pool>(geometry, options, source);
}

struct Source {
  PageLayout page;
  Segment segment;
};

Source read_source(const pagezip_document_spec& spec, const KvGeometry& geometry) {
  const Source source{spec.source_page == nullptr ? geometry.page : read_page(spec.source_page),
                      read_segment(spec.source, geometry.layers_per_block, geometry.kv_heads)};
  require(source.page.k_type == geometry.page.k_type &&
              source.page.v_type == geometry.page.v_type &&
              source.page.head_dim == geometry.page.head_dim,
          "the source's pages have other types or another head_dim than the pool's");
  require(source.segment.first == nullptr && source.segment.lengths == nullptr &&
              source.segment.first_page == 0 && source.segment.first_position == 0,
          "the source isn't uniform from position 0");
  require(spec.prefix_length >= 0 && spec.prefix_length <= source.segment.uniform_length,
          "prefix_length is longer than the source");
  return source;
}

KeptSets select_kept(const pagezip_document_spec& spec, const KvGeometry& geometry,
                     int64_t tokens) {
  validate_keep_ratio(tokens, spec.keep_ratio);
  require(spec.scores != nullptr && spec.layer_stride >= 0 && spec.head_stride >= 0,
          "scores is null, or a stride of scores is negative");
  require(spec.min_per_head >= 0, "min_per_head is negative");
  const ScoreView scores{geometry.layers_per_block, geometry.kv_heads, tokens, spec.scores,
                         spec.layer_stride,         spec.head_stride};
  const bool uniform = spec.uniform != 0;
  const int64_t keep = uniform ? 0 : keep_count(scores.pairs(), spec.keep_ratio);
  const int64_t floor = uniform ? keep_count(tokens, spec.keep_ratio) : spec.min_per_head;
  KeptSets kept{scores.layers, scores.heads, {}, {}};
  kept.first.resize(static_cast<size_t>(scores.lists()) + 1);
  kept.pairs.resize(static_cast<size_t>(selected_pairs(scores, keep, floor)));
  std::vector<std::byte> workspace(select_workspace_bytes(scores.lists()));
  const auto bad = select_global(scores, keep, floor, workspace, {kept.first, kept.pairs});
  if (bad.has_value()) {
    throw Error(ErrorKind::kRuntime, bad->message());
  }
  return kept;
}

DocumentShape shape_of(const KeptSets& kept, int64_t length, int64_t prefix_length) {
  DocumentShape shape{true, length, prefix_length, {}, {}};
  for (int layer = 0; layer < kept.layers; ++layer) {
    for (int head = 0; head < kept.heads; ++head) {
      shape.lengths.push_back(static_cast<uint32_t>(
          prefix_length + static_cast<int64_t>(kept.head(layer, head).size())));
    }
  }
  return shape;
}

void copy_kept(const Source& source, const KeptSets& kept, const Document& document) {
  const Segment target = document.segment(0);
  const auto prefix = static_cast<uint32_t>(document.prefix_length());
  std::vector<uint32_t> pairs;
  ThreadPool threads(std::span<std::byte>{});
  for (int layer = 0; layer < kept.layers; ++layer) {
    for (int head = 0; head < kept.heads; ++head) {
      pairs.resize(prefix);
      std::iota(pairs.begin(), pairs.end(), 0U);
      for (const uint32_t pair : kept.head(layer, head)) {
        pairs.push_back(prefix + pair);
      }
      const std::span<const uint32_t> list(pairs);
      cpu_kernels().copy_pairs({source.page,
                                &source.segment,
                                document.geometry().page,
                                &target,
                                layer,
                                head,
                                {&list, 1},
                                0},
                               threads);
    }
  }
}

DocumentIdentity identity_of(const pagezip_document_spec& spec, const BlockPool& pool,
                             int64_t length) {
  DocumentIdentity identity;
  identity.shape = c_api::shape_of(pool, spec.model);
  if (spec.tokens != nullptr) {
    identity.prefix_ids.assign(spec.tokens, spec.tokens + spec.prefix_length);
    identity.context_ids.assign(spec.tokens + spec.prefix_length, spec.tokens + length);
    const auto negative = [](TokenId token) { return token < 0; };
    require(std::none_of(spec.tokens, spec.tokens + length, negative), "a token id is negative");
  }
  identity.scorer = "external";
  identity.version = {false, spec.uniform != 0 ? "uniform" : "global", spec.keep_ratio,
                      spec.uniform != 0 ? 0 : spec.min_per_head};
  return identity;
}

std::unique_ptr<pagezip_document> create_document(const std::shared_ptr<Pool>& shared,
                                                  const pagezip_document_spec* from) {
  const pagezip_document_spec spec = read_struct(from, "pagezip_document_spec");
  BlockPool& pool = shared->pool;
  const Source source = read_source(spec, pool.geometry());
  const int64_t length = source.segment.uniform_length;
  const KeptSets kept = select_kept(spec, pool.geometry(), length - spec.prefix_length);
  DocumentIdentity identity = identity_of(spec, pool, length);
  DocumentShape shape = shape_of(kept, length, spec.prefix_length);
  const int64_t blocks = Document::blocks_for(pool.geometry(), shape);
  std::optional<BlockReservation> reservation = pool.reserve(blocks);
  if (!reservation.has_value()) {
    throw Error(ErrorKind::kOutOfMemory,
                "the document needs " + std::to_string(blocks) + " blocks, and there are fewer");
  }
  auto document = std::make_unique<pagezip_document>();
  document->pool = shared;
  document->document = Document::blank(pool, std::move(shape), *reservation);
  copy_kept(source, kept, *document->document);
  if (spec.tokens != nullptr) {
    document->tokens.assign(spec.tokens, spec.tokens + length);
  }
  document->identity = std::move(identity);
  return document;
}

std::unique_ptr<pagezip_document> load(const std::shared_ptr<Pool>& shared, const char* path,
                                       const uint64_t model[4]) {
  require(path != nullptr, "path is null");
  LoadedDocument loaded = load_document(path, shared->pool, c_api::shape_of(shared->pool, model));
  auto document = std::make_unique<pagezip_document>();
  document->pool = shared;
  document->document = std::move(loaded.document);
  document->identity = std::move(loaded.header.identity);
  document->tokens = document->identity.prefix_ids;
  const std::vector<TokenId>& context = document->identity.context_ids;
  document->tokens.insert(document->tokens.end(), context.begin(), context.end());
  return document;
}

pagezip_document_info info_of(const pagezip_document& of) {
  const Document& document = *of.document;
  pagezip_document_info info{};
  info.length = document.logical_length();
  info.prefix_length = document.prefix_length();
  info.pairs = document.pairs();
  info.blocks = document.blocks_held();
  info.bytes = document.kv_bytes();
  info.tokens = of.tokens.empty() ? nullptr : of.tokens.data();
  return info;
}

}  // namespace
}  // namespace pagezip::c_api

pagezip_status pagezip_pool_create(const pagezip_pool_options* options, pagezip_pool** pool) {
  return guarded([&] {
    require(pool != nullptr, "pool is null");
    *pool = new pagezip_pool{create_pool(options)};
    return PAGEZIP_OK;
  });
}

void pagezip_pool_destroy(pagezip_pool* pool) { delete pool; }

pagezip_status pagezip_document_create(pagezip_pool* pool, const pagezip_document_spec* spec,
                                       pagezip_document** document) {
  return guarded([&] {
    require(pool != nullptr && document != nullptr, "pool or document is null");
    *document = create_document(pool->shared, spec).release();
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_document_save(const pagezip_document* document, const char* path) {
  return guarded([&] {
    require(document != nullptr && path != nullptr, "document or path is null");
    require(!document->tokens.empty(), "the document has no tokens, which a file needs");
    save_document(path, *document->document, document->identity);
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_document_load(pagezip_pool* pool, const char* path, const uint64_t model[4],
                                     pagezip_document** document) {
  return guarded([&] {
    require(pool != nullptr && document != nullptr, "pool or document is null");
    *document = load(pool->shared, path, model).release();
    return PAGEZIP_OK;
  });
}

void pagezip_document_drop(pagezip_document* document) { delete document; }

pagezip_status pagezip_document_get_info(const pagezip_document* document,
                                         pagezip_document_info* info) {
  return guarded([&] {
    require(document != nullptr, "document is null");
    write_struct(info, info_of(*document), "pagezip_document_info");
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_document_get_segment(const pagezip_document* document,
                                            pagezip_segment* segment) {
  return guarded([&] {
    require(document != nullptr, "document is null");
    write_struct(segment, to_c(document->document->segment(0)), "pagezip_segment");
    return PAGEZIP_OK;
  });
}
