/* Tier 1, kernels: KVzip on the pages of a program that has its own KV pool.
 *
 * The pool is [blocks, kv_heads, layers, 2, page_tokens, head_dim] in float32, filled with random
 * numbers where a model would write. A document of 300 tokens is scored while the "model" repeats
 * it, the best 30 % of its pairs are copied to pages of their own, and a question attends to system
 * prompt, kept pairs and its own pairs. Every step is compared with plain loops.
 */
#include <math.h>
#include <pagezip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  kLayers = 2,
  kKvHeads = 2,
  kHeads = 4,
  kGroup = kHeads / kKvHeads,
  kDim = 32,
  kPage = 16,
  kPrefix = 20,
  kText = 280,
  kDocument = kPrefix + kText,
  kRows = 70, /* of the repetition; a question has as many, to be short */
  kBlocks = 64,
  kLists = kLayers * kKvHeads,
  kWidth = kHeads * kDim
};

typedef float page_t[2][kPage][kDim]; /* K, V */
static _Alignas(64) page_t pool[kBlocks][kKvHeads][kLayers];
static _Alignas(64) page_t compressed[kLists * (kText / kPage + 1)];
static _Alignas(64) unsigned char workspace[4 << 20];
static uint32_t document_blocks[kDocument / kPage + 1], own_blocks[kRows / kPage + 1];
static float queries[kLayers][kRows][kWidth];

static void must(pagezip_status status) {
  if (status != PAGEZIP_OK) {
    fprintf(stderr, "embed_kernels: %s\n", pagezip_last_error());
    exit(1);
  }
}

static void near(double found, double expected, const char* what) {
  if (!(fabs(found - expected) <= 1e-4 * (1 + fabs(expected)))) {
    fprintf(stderr, "embed_kernels: %s is %.7g, and should be %.7g\n", what, found, expected);
    exit(1);
  }
}

static float random_float(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)(state >> 40) / (1 << 23) - 1;
}

static void clear(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = -INFINITY;
}

static void fill(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = random_float();
}

/* ---- how pagezip sees the pool ---- */

static const pagezip_page page = {sizeof page,     PAGEZIP_F32, PAGEZIP_F32,
                                  PAGEZIP_K_PLAIN, kPage,       kDim};

static pagezip_segment in_pool(const uint32_t* blocks, int64_t length, int64_t first_position) {
  pagezip_segment segment = {.size = sizeof segment};
  segment.base = pool;
  segment.ids = blocks;
  segment.uniform_length = length;
  segment.first_position = first_position;
  segment.scale = sizeof pool[0] / PAGEZIP_UNIT_BYTES;
  segment.head_stride = sizeof pool[0][0] / PAGEZIP_UNIT_BYTES;
  segment.layer_stride = sizeof pool[0][0][0] / PAGEZIP_UNIT_BYTES;
  segment.heads = kKvHeads;
  return segment;
}

/* ---- the same in plain loops ---- */

static const float* in_page(const uint32_t* blocks, int layer, int head, int64_t pair, int v) {
  return pool[blocks[pair / kPage]][head][layer][v][pair % kPage];
}
static const float* document_at(int layer, int head, int64_t pair, int v) {
  return in_page(document_blocks, layer, head, pair, v);
}

static double logit(const float* q, const float* k) {
  double sum = 0;
  for (int d = 0; d < kDim; ++d) sum += (double)q[d] * k[d];
  return sum / sqrt(kDim);
}

/* The log of the softmax's denominator of a row of the repetition, over the whole document and the
 * row's own pairs so far. */
static double row_lse(int layer, int row, int head) {
  const float* q = queries[layer][row] + head * kDim;
  double sum = 0;
  for (int64_t pair = 0; pair < kDocument; ++pair) {
    sum += exp(logit(q, document_at(layer, head / kGroup, pair, 0)));
  }
  for (int64_t pair = 0; pair <= row; ++pair) {
    sum += exp(logit(q, in_page(own_blocks, layer, head / kGroup, pair, 0)));
  }
  return log(sum);
}

/* ---- score ---- */

static void score(float scores[kLayers][kKvHeads][kText]) {
  const pagezip_segment document = in_pool(document_blocks, kDocument, 0);
  const pagezip_segment own = in_pool(own_blocks, kRows, kDocument);
  for (int layer = 0; layer < kLayers; ++layer) {
    clear((float*)scores[layer], kKvHeads * kText);
    pagezip_score_args args = {.size = sizeof args};
    args.page = &page;
    args.document = &document;
    args.own = &own;
    args.layer = layer;
    args.heads = kHeads;
    args.kv_heads = kKvHeads;
    args.scale = (float)(1 / sqrt(kDim));
    args.rows = kRows;
    args.first_position = kDocument;
    args.q = queries[layer][0];
    args.q_stride = kWidth;
    args.prefix_end = kPrefix;
    args.chunk_begin = kPrefix;
    args.chunk_end = kDocument;
    args.best = scores[layer][0];
    args.best_stride = kText;
    must(pagezip_score(&args, workspace, sizeof workspace));
  }
}

static void check_scores(float scores[kLayers][kKvHeads][kText]) {
  for (int layer = 0; layer < kLayers; ++layer) {
    static float expected[kKvHeads][kText];
    clear((float*)expected, kKvHeads * kText);
    for (int row = 0; row < kRows; ++row) {
      for (int head = 0; head < kHeads; ++head) {
        const double lse = row_lse(layer, row, head);
        const float* q = queries[layer][row] + head * kDim;
        for (int64_t j = 0; j < kText; ++j) {
          const float* k = document_at(layer, head / kGroup, kPrefix + j, 0);
          float* best = &expected[head / kGroup][j];
          *best = fmaxf(*best, (float)(logit(q, k) - lse));
        }
      }
    }
    for (int head = 0; head < kKvHeads; ++head) {
      for (int j = 0; j < kText; ++j) near(scores[layer][head][j], expected[head][j], "a score");
    }
  }
}

/* ---- select and compact ---- */

typedef struct kept_t {
  uint64_t first[kLists + 1];
  uint32_t pairs[kLists * kText];
  uint32_t page_first[kLists], lengths[kLists], pages[kLists * (kText / kPage + 1)];
} kept_t;

static void select_best(float scores[kLayers][kKvHeads][kText], kept_t* kept) {
  pagezip_select_args args = {.size = sizeof args};
  args.scores = scores[0][0];
  args.layer_stride = kKvHeads * kText;
  args.head_stride = kText;
  args.tokens = kText;
  args.layers = kLayers;
  args.heads = kKvHeads;
  args.keep = pagezip_keep_count(kLists * kText, 0.3);
  args.first = kept->first;
  args.pairs = kept->pairs;
  args.pairs_max = kLists * kText;
  must(pagezip_select(&args, workspace, sizeof workspace));
  near((double)kept->first[kLists], kLists * kText * 3 / 10, "the number of kept pairs");
}

/* Every list gets as many pages as it needs; ids are page numbers. */
static pagezip_segment compact(kept_t* kept) {
  uint32_t next = 0;
  for (int list = 0; list < kLists; ++list) {
    kept->lengths[list] = (uint32_t)(kept->first[list + 1] - kept->first[list]);
    kept->page_first[list] = next;
    next += (kept->lengths[list] + kPage - 1) / kPage;
  }
  for (uint32_t i = 0; i < next; ++i) kept->pages[i] = i;
  pagezip_segment target = {.size = sizeof target};
  target.base = compressed;
  target.ids = kept->pages;
  target.first = kept->page_first;
  target.lengths = kept->lengths;
  target.scale = sizeof compressed[0] / PAGEZIP_UNIT_BYTES;
  target.heads = kKvHeads;
  const pagezip_segment source = in_pool(document_blocks, kDocument, 0);
  pagezip_compact_args args = {.size = sizeof args};
  args.source_page = &page;
  args.source = &source;
  args.target = &target;
  args.layer_end = kLayers;
  args.heads = kKvHeads;
  args.first = kept->first;
  args.pairs = kept->pairs;
  args.source_first = kPrefix;
  must(pagezip_compact(&args));
  return target;
}

/* ---- attend and merge ---- */

static void attend(const pagezip_segment* segments, int count, int layer, float* out, float* lse) {
  pagezip_attend_args args = {.size = sizeof args};
  args.page = &page;
  args.segments = segments;
  args.segment_count = count;
  args.layer = layer;
  args.heads = kHeads;
  args.kv_heads = kKvHeads;
  args.scale = (float)(1 / sqrt(kDim));
  args.rows = kRows;
  args.first_position = kDocument;
  args.q = queries[layer][0];
  args.q_stride = kWidth;
  args.out = out;
  args.out_stride = kWidth;
  args.lse = lse;
  args.lse_stride = kHeads;
  must(pagezip_attend(&args, workspace, sizeof workspace));
}

static void add(const float* q, const float* k, const float* v, double* sum, double* out) {
  const double weight = exp(logit(q, k));
  *sum += weight;
  for (int d = 0; d < kDim; ++d) out[d] += weight * v[d];
}

static void check_attention(const kept_t* kept, int layer, float (*out)[kWidth]) {
  for (int row = 0; row < kRows; ++row) {
    for (int h = 0; h < kHeads; ++h) {
      const int head = h / kGroup, list = layer * kKvHeads + head;
      const float* q = queries[layer][row] + h * kDim;
      double sum = 0, expected[kDim] = {0};
      for (int64_t i = 0; i < kPrefix; ++i) {
        add(q, document_at(layer, head, i, 0), document_at(layer, head, i, 1), &sum, expected);
      }
      for (uint64_t i = kept->first[list]; i < kept->first[list + 1]; ++i) {
        const int64_t pair = kPrefix + kept->pairs[i];
        add(q, document_at(layer, head, pair, 0), document_at(layer, head, pair, 1), &sum,
            expected);
      }
      for (int64_t i = 0; i <= row; ++i) {
        add(q, in_page(own_blocks, layer, head, i, 0), in_page(own_blocks, layer, head, i, 1), &sum,
            expected);
      }
      for (int d = 0; d < kDim; ++d) near(out[row][h * kDim + d], expected[d] / sum, "an output");
    }
  }
}

int main(void) {
  static float scores[kLayers][kKvHeads][kText];
  static float out[kRows][kWidth], own_out[kRows][kWidth], lse[kRows][kHeads],
      own_lse[kRows][kHeads];
  static kept_t kept;
  printf("kernels: %s\n", pagezip_isa());
  fill((float*)pool, sizeof pool / sizeof(float));
  fill((float*)queries, sizeof queries / sizeof(float));
  for (uint32_t i = 0; i < sizeof document_blocks / 4; ++i) document_blocks[i] = 2 * i + 1;
  for (uint32_t i = 0; i < sizeof own_blocks / 4; ++i) own_blocks[i] = kBlocks - 2 - 2 * i;

  score(scores);
  check_scores(scores);
  select_best(scores, &kept);
  /* The system prompt stays where it is: a segment of its own. */
  const pagezip_segment document[2] = {in_pool(document_blocks, kPrefix, 0), compact(&kept)};
  const pagezip_segment own = in_pool(own_blocks, kRows, kDocument);
  for (int layer = 0; layer < kLayers; ++layer) {
    attend(document, 2, layer, out[0], lse[0]);
    attend(&own, 1, layer, own_out[0], own_lse[0]);
    const pagezip_merge_args args = {sizeof args, kRows,  kHeads,     kDim,   out[0],     kWidth,
                                     lse[0],      kHeads, own_out[0], kWidth, own_lse[0], kHeads};
    must(pagezip_merge(&args));
    check_attention(&kept, layer, out);
  }
  printf("kept %llu of %d pairs; scores and attention are those of plain loops\n",
         (unsigned long long)kept.first[kLists], kLists * kText);
  return 0;
}
