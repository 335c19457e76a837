// Tier 2, documents: compressed documents inside another engine's KV pool.
//
// The pool is laid out as vLLM's when all layers share it: [blocks, kv_heads, layers, 2,
// page_tokens, head_dim] in bfloat16, with an allocator that pagezip asks for blocks. A prefilled
// prompt (random numbers here, where a model would write) becomes a document of 30 % of its pairs,
// goes to a file and comes back. What attention reads of it is compared with plain loops.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pagezip.hpp>
#include <random>
#include <vector>

namespace {

using namespace pagezip::embed;

constexpr int kLayers = 3;
constexpr int kKvHeads = 2;
constexpr int kHeads = 4;
constexpr int kDim = 64;
constexpr int kPageTokens = 16;
constexpr int kPrefix = 21;  // of the prompt: always kept
constexpr int kLength = 500;
constexpr int kWidth = kHeads * kDim;
constexpr uint64_t kModel[4] = {0x5eed, 1, 2, 3};  // hashes of what makes KV of text

void expect(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "embed_documents: not so: %s\n", what);
    std::exit(1);
  }
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// The engine's pool and its block allocator.
class KvPool {
 public:
  using Page = uint16_t[2][kPageTokens][kDim];
  static constexpr int kBlocks = 80;

  KvPool() {
    for (uint32_t id = 0; id < kBlocks; ++id) {
      free_.push_back(id);
    }
  }
  size_t blocks_free() const { return free_.size(); }

  std::vector<uint32_t> allocate(size_t count) {
    expect(count <= free_.size(), "the pool has blocks enough");
    std::vector<uint32_t> ids(free_.end() - static_cast<long>(count), free_.end());
    free_.resize(free_.size() - count);
    return ids;
  }
  void release(const uint32_t* ids, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      std::memset(pages_[ids[i]], 0xff, sizeof pages_[ids[i]]);  // NaN, to see a late reader
      free_.push_back(ids[i]);
    }
  }

  // How pagezip gets blocks.
  pagezip_block_source source() {
    auto source = sized<pagezip_block_source>();
    source.user = this;
    source.take = [](void* self, uint32_t* ids, size_t count) {
      auto* pool = static_cast<KvPool*>(self);
      if (count > pool->blocks_free()) {
        return 1;
      }
      const std::vector<uint32_t> taken = pool->allocate(count);
      std::copy(taken.begin(), taken.end(), ids);
      return 0;
    };
    source.give_back = [](void* self, const uint32_t* ids, size_t count) {
      static_cast<KvPool*>(self)->release(ids, count);
    };
    return source;
  }

  // And where they lie.
  void* base() { return pages_; }
  uint16_t* at(uint32_t block, int head, int layer, int v, int slot) {
    return pages_[block][head][layer][v][slot];
  }
  pagezip_segment segment(const std::vector<uint32_t>& blocks, int64_t length) {
    auto segment = sized<pagezip_segment>();
    segment.base = pages_;
    segment.ids = blocks.data();
    segment.uniform_length = length;
    segment.scale = sizeof pages_[0] / PAGEZIP_UNIT_BYTES;
    segment.head_stride = sizeof pages_[0][0] / PAGEZIP_UNIT_BYTES;
    segment.layer_stride = sizeof(Page) / PAGEZIP_UNIT_BYTES;
    segment.heads = kKvHeads;
    return segment;
  }

 private:
  alignas(64) Page pages_[kBlocks][kKvHeads][kLayers];
  std::vector<uint32_t> free_;
};

KvPool kv_pool;

pagezip_page page_layout() {
  auto page = sized<pagezip_page>();
  page.k_type = PAGEZIP_BF16;
  page.v_type = PAGEZIP_BF16;
  page.key_order = PAGEZIP_K_PLAIN;
  page.page_tokens = kPageTokens;
  page.head_dim = kDim;
  return page;
}

// A prompt whose KV and scores are made up; a copy of the KV is kept to compare with.
struct Prompt {
  explicit Prompt(std::mt19937& random)
      : blocks(kv_pool.allocate((kLength + kPageTokens - 1) / kPageTokens)),
        kv(size_t{2} * kLayers * kKvHeads * kLength * kDim),
        scores(size_t{kLayers} * kKvHeads * (kLength - kPrefix)),
        tokens(kLength) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int pair = 0; pair < kLength; ++pair) {
          for (int i = 0; i < 2 * kDim; ++i) {
            uint16_t* row =
                kv_pool.at(blocks[pair / kPageTokens], head, layer, i / kDim, pair % kPageTokens);
            const float value = uniform(random);
            uint32_t bits = 0;
            std::memcpy(&bits, &value, sizeof bits);
            row[i % kDim] = static_cast<uint16_t>(bits >> 16);
            at(layer, head, pair, i / kDim)[i % kDim] = from_bf16(row[i % kDim]);
          }
        }
      }
    }
    std::generate(scores.begin(), scores.end(), [&] { return uniform(random); });
    std::generate(tokens.begin(), tokens.end(), [n = 0]() mutable { return n++; });
  }
  float* at(int layer, int head, int pair, int v) {
    const size_t list = static_cast<size_t>(layer) * kKvHeads + head;
    return &kv[((list * kLength + pair) * 2 + v) * kDim];
  }
  float score(int layer, int head, int pair) const {
    return scores[(static_cast<size_t>(layer) * kKvHeads + head) * (kLength - kPrefix) +
                  (pair - kPrefix)];
  }

  std::vector<uint32_t> blocks;
  std::vector<float> kv;  // [layers, kv_heads, length, 2, head_dim]
  std::vector<float> scores;
  std::vector<int32_t> tokens;
};

Document compress(Pool& pool, const Prompt& prompt) {
  const pagezip_segment source = kv_pool.segment(prompt.blocks, kLength);
  auto spec = sized<pagezip_document_spec>();
  spec.source = &source;
  spec.prefix_length = kPrefix;
  spec.scores = prompt.scores.data();
  spec.layer_stride = kKvHeads * (kLength - kPrefix);
  spec.head_stride = kLength - kPrefix;
  spec.keep_ratio = 0.3;
  spec.tokens = prompt.tokens.data();
  std::copy(std::begin(kModel), std::end(kModel), spec.model);
  return Document(pool, spec);
}

// The attention of one query row behind the document, for every layer: [layers, heads * head_dim].
std::vector<float> attend(const Document& document, const std::vector<float>& q,
                          Workspace& workspace) {
  const pagezip_page page = page_layout();
  const pagezip_segment segment = document.segment();
  std::vector<float> out(q.size());
  auto args = sized<pagezip_attend_args>();
  args.page = &page;
  args.segments = &segment;  // a real question would bring its own pairs as a second one
  args.segment_count = 1;
  args.heads = kHeads;
  args.kv_heads = kKvHeads;
  args.scale = 0.125F;
  args.rows = 1;
  args.first_position = kLength;
  for (args.layer = 0; args.layer < kLayers; ++args.layer) {
    args.q = &q[static_cast<size_t>(args.layer) * kWidth];
    args.out = &out[static_cast<size_t>(args.layer) * kWidth];
    pagezip::embed::attend(args, workspace);
  }
  return out;
}

// The same over the prefix and all pairs with a score of at least `threshold`, in plain loops.
double attend_naively(Prompt& prompt, const float* q, int layer, int head, int channel,
                      float threshold) {
  double sum = 0;
  double out = 0;
  for (int pair = 0; pair < kLength; ++pair) {
    if (pair >= kPrefix && prompt.score(layer, head, pair) < threshold) {
      continue;
    }
    double logit = 0;
    for (int i = 0; i < kDim; ++i) {
      logit += static_cast<double>(q[i]) * prompt.at(layer, head, pair, 0)[i];
    }
    const double weight = std::exp(logit * 0.125);
    sum += weight;
    out += weight * prompt.at(layer, head, pair, 1)[channel];
  }
  return out / sum;
}

void run() {
  std::mt19937 random(7);
  const pagezip_page page = page_layout();
  const pagezip_block_source source = kv_pool.source();
  auto options = sized<pagezip_pool_options>();
  options.page = &page;
  options.layers = kLayers;
  options.kv_heads = kKvHeads;
  options.order = PAGEZIP_HEADS_FIRST;
  options.base = kv_pool.base();
  options.blocks = KvPool::kBlocks;
  options.source = &source;
  Pool pool(options);

  Prompt prompt(random);
  Document document = compress(pool, prompt);
  kv_pool.release(prompt.blocks.data(), prompt.blocks.size());  // the document needs them no more
  const pagezip_document_info info = document.info();
  const int64_t text_pairs = int64_t{kLayers} * kKvHeads * (kLength - kPrefix);
  const int64_t kept = pagezip_keep_count(text_pairs, 0.3);
  expect(info.pairs == kept + kLayers * kKvHeads * kPrefix, "exactly 30 % and the prefix are kept");
  expect(kv_pool.blocks_free() + static_cast<size_t>(info.blocks) == KvPool::kBlocks,
         "the document's blocks are all that is taken");
  std::printf("%zu blocks of prompt -> %lld of document\n", prompt.blocks.size(),
              static_cast<long long>(info.blocks));

  std::vector<float> q(size_t{kLayers} * kWidth);
  std::generate(q.begin(), q.end(),
                [&] { return 4 * std::uniform_real_distribution<float>()(random) - 2; });
  Workspace workspace;
  const std::vector<float> out = attend(document, q, workspace);
  std::vector<float> sorted = prompt.scores;
  std::nth_element(sorted.begin(), sorted.begin() + (kept - 1), sorted.end(), std::greater<>());
  const float threshold = sorted[static_cast<size_t>(kept - 1)];
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < kWidth; ++i) {
      const int head = i / kDim;
      const size_t row = static_cast<size_t>(layer) * kWidth;
      const double expected =
          attend_naively(prompt, &q[row + static_cast<size_t>(head) * kDim], layer,
                         head / (kHeads / kKvHeads), i % kDim, threshold);
      expect(std::abs(out[row + static_cast<size_t>(i)] - expected) < 1e-4,
             "attention is that of plain loops");
    }
  }

  document.save("embed_documents.pgz");
  { const Document dropped = std::move(document); }
  expect(kv_pool.blocks_free() == KvPool::kBlocks, "a dropped document gives all blocks back");
  const Document loaded = Document::load(pool, "embed_documents.pgz", kModel);
  expect(attend(loaded, q, workspace) == out, "a loaded document gives the same bits");
  try {
    Document::load(pool, "embed_documents.pgz", {1, 1, 2, 3});
    expect(false, "a file of another model is refused");
  } catch (const Error& error) {
    expect(error.status() == PAGEZIP_BAD_FILE, "a file of another model is a bad file");
    std::printf("refused: %s\n", error.what());
  }
}

}  // namespace

int main() {
  try {
    run();
  } catch (const Error& error) {
    std::fprintf(stderr, "embed_documents: %s\n", error.what());
    return 1;
  }
  expect(kv_pool.blocks_free() == KvPool::kBlocks, "nothing is left behind");
  std::printf("ok\n");
  return 0;
}
