// pagezip for other programs: a C ABI in three tiers, each of which can be used alone.
//
//   kernels    score, select, compact, attend, merge on your pages
//   documents  compressed documents in your arena, of blocks that your allocator hands out
//   engine     the whole: models, documents, requests, streams (pagezip_engine.h)
//
// docs/EMBEDDING.md says which to take; examples/ has a program for each. Link libpagezip.so, which
// exports what stands here and nothing else. pagezip.hpp has owners and exceptions for C++.
//
// Conventions
// - Functions that can fail return a pagezip_status. What went wrong is text: pagezip_last_error().
//   No C++ exception leaves the library. Output parameters are written only with PAGEZIP_OK.
// - Structs begin with their size, so that they can grow: `pagezip_x x = {.size = sizeof x}`, then
//   the fields. A library that is older than the header refuses fields that it doesn't know unless
//   they are 0; fields that a newer library has and you don't know are 0.
// - What you pass is borrowed for the call, unless said otherwise. What you get lives as long as
//   the handle that it came from.
// - Numbers and pointers are checked as far as that is possible without touching pages; the
//   addresses that they lead to are yours to get right.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PAGEZIP_API __attribute__((visibility("default")))
#else
#define PAGEZIP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pagezip_status {
  PAGEZIP_OK = 0,
  PAGEZIP_FAILED = 1,         // anything without a better name
  PAGEZIP_INVALID = 2,        // an argument that can't be
  PAGEZIP_BAD_FILE = 3,       // a model or document file that is broken or doesn't fit
  PAGEZIP_OUT_OF_MEMORY = 4,  // blocks, or memory of the host
  PAGEZIP_NOT_WRITTEN = 5,    // a file that can't be written
  PAGEZIP_BUSY = 6,           // try again later
  PAGEZIP_NOT_FOUND = 7,      // no such document, or another's
} pagezip_status;

/// "0.1.0". Any thread.
PAGEZIP_API const char* pagezip_version(void);

/// One line about the last call of this thread that didn't return PAGEZIP_OK; "" if there is none.
/// Valid until this thread's next call.
PAGEZIP_API const char* pagezip_last_error(void);

// ---- pages --------------------------------------------------------------------------------------
//
// A page holds page_tokens pairs of one layer and KV head: K, then V, each filled up to a multiple
// of 64 bytes. Addresses of pages are in units of 64 bytes from a base.

#define PAGEZIP_UNIT_BYTES 64

typedef enum pagezip_kv_type {
  PAGEZIP_F32 = 0,
  PAGEZIP_F16 = 1,
  PAGEZIP_BF16 = 2,
} pagezip_kv_type;

typedef enum pagezip_key_order {
  PAGEZIP_K_TRANSPOSED = 0,  // [head_dim, page_tokens]: faster on CPUs
  PAGEZIP_K_PLAIN = 1,       // [page_tokens, head_dim], as V always is
} pagezip_key_order;

typedef struct pagezip_page {
  size_t size;
  pagezip_kv_type k_type;
  pagezip_kv_type v_type;
  pagezip_key_order key_order;
  int32_t page_tokens;  // 16, 32 or 64
  int32_t head_dim;     // a multiple of 16, at most 1024
} pagezip_page;

/// Bytes of one page; 0 for a layout that can't be.
PAGEZIP_API size_t pagezip_page_bytes(const pagezip_page* page);

/// Where pairs lie: for every (layer, head) a list of pages and a length. Page p of a list is at
///   base + 64 * (ids[first(layer, head) + p - first_page] * scale + offset
///                + layer * layer_stride + head * head_stride).
/// A uniform segment has first == lengths == NULL: ids are blocks, the same for all layers and
/// heads, and pair i is the token at position first_position + i. In a ragged segment every
/// (layer, head) has its own list; its pairs all lie before the rows that read them.
typedef struct pagezip_segment {
  size_t size;
  void* base;  // aligned to 64 bytes
  const uint32_t* ids;
  const uint32_t* first;    // [layers * heads], or NULL: 0
  const uint32_t* lengths;  // [layers * heads] in pairs, or NULL: uniform_length
  int64_t uniform_length;
  int64_t first_page;      // pages before it are gone (behind a sliding window)
  int64_t first_position;  // of pair 0
  uint64_t scale;          // in units of 64 bytes, as the next three
  uint64_t offset;
  uint64_t layer_stride;
  uint64_t head_stride;
  int32_t heads;  // KV heads of `first` and `lengths`
} pagezip_segment;

// ---- kernels ------------------------------------------------------------------------------------
//
// Pure functions on memory of yours: they start no thread, allocate nothing, keep nothing and
// return when they are done. Any thread; calls that write different memory may run at once. Where a
// kernel needs memory beside its input and output you bring it: `..._workspace_bytes(args)` bytes,
// aligned to 64, with any contents. It is 0 for arguments that the kernel refuses. The first call
// of a process chooses and tests the instruction set, which takes a moment; pagezip_isa() does it
// ahead.

/// The instruction sets in use, for people: "AVX3 float, AVX512-VNNI int8". Any thread.
PAGEZIP_API const char* pagezip_isa(void);

/// The attention of `rows` consecutive tokens of one sequence in one layer. Row i is the token at
/// first_position + i and sees the pairs at its own position and before; with a window only the
/// last so many of them. Softmax in float32 over the segments in their order.
typedef struct pagezip_attend_args {
  size_t size;
  const pagezip_page* page;
  const pagezip_segment* segments;  // 1 to 4, all of the same size
  int32_t segment_count;
  int32_t layer;
  int32_t heads;     // of queries
  int32_t kv_heads;  // divides heads; query head h reads KV head h / (heads / kv_heads)
  float scale;       // of the products, commonly 1 / sqrt(head_dim)
  int32_t window;    // 0: none
  int64_t rows;
  int64_t first_position;
  const float* q;    // [rows, heads * head_dim], after RoPE
  int64_t q_stride;  // in floats from row to row, as all strides of matrices
  float* out;        // [rows, heads * head_dim]; 0 where a row sees nothing
  int64_t out_stride;
  float* lse;  // [rows, heads], natural log of the sum of exp; -inf where a row sees nothing. May
               // be NULL
  int64_t lse_stride;
} pagezip_attend_args;

PAGEZIP_API size_t pagezip_attend_workspace_bytes(const pagezip_attend_args* args);
PAGEZIP_API pagezip_status pagezip_attend(const pagezip_attend_args* args, void* workspace,
                                          size_t workspace_bytes);

/// Scores a chunk of a document as KVzip does (Kim et al. 2025): the rows are the model's queries
/// while it repeats the chunk, and
///   best[h][j] = max(best[h][j], max over rows and queries of h of log softmax(q . k[j]))
/// where the softmax is over the pairs [0, prefix_end) and [chunk_begin, chunk_end) of `document`
/// and all visible ones of `own`. So fill `best` with -inf, and call for any groups of rows.
typedef struct pagezip_score_args {
  size_t size;
  const pagezip_page* page;
  const pagezip_segment* document;
  const pagezip_segment* own;  // the repetition's own pairs, those of the rows among them; or NULL
  int32_t layer;
  int32_t heads;
  int32_t kv_heads;
  float scale;
  int64_t rows;
  int64_t first_position;  // of row 0, behind the document
  const float* q;          // [rows, heads * head_dim]
  int64_t q_stride;
  int64_t prefix_end;  // pairs of the document, as the next two
  int64_t chunk_begin;
  int64_t chunk_end;
  float* best;  // [kv_heads, chunk_end - chunk_begin], in and out
  int64_t best_stride;
} pagezip_score_args;

PAGEZIP_API size_t pagezip_score_workspace_bytes(const pagezip_score_args* args);
PAGEZIP_API pagezip_status pagezip_score(const pagezip_score_args* args, void* workspace,
                                         size_t workspace_bytes);

/// Picks the pairs that stay: exactly `keep` of all, in the order (score descending, layer, head,
/// position), after the best `min_per_head` of every (layer, head). If the floors alone are more
/// than `keep`, they are kept and nothing else.
typedef struct pagezip_select_args {
  size_t size;
  const float* scores;   // of (layer, head): tokens floats at layer * layer_stride + head *
                         // head_stride
  int64_t layer_stride;  // in floats
  int64_t head_stride;
  int64_t tokens;
  int32_t layers;
  int32_t heads;  // KV heads
  int64_t keep;   // 0 to layers * heads * tokens; see pagezip_keep_count()
  int64_t min_per_head;
  uint64_t*
      first;  // out: [layers * heads + 1], where the list of a (layer, head) begins in `pairs`
  uint32_t* pairs;    // out: token indexes, ascending in every list
  int64_t pairs_max;  // room in `pairs`: at least what is kept
} pagezip_select_args;

/// floor(pairs * keep_ratio), as the reference implementation of KVzip rounds it; 0 if keep_ratio
/// isn't in (0, 1].
PAGEZIP_API int64_t pagezip_keep_count(int64_t pairs, double keep_ratio);
PAGEZIP_API size_t pagezip_select_workspace_bytes(const pagezip_select_args* args);
/// PAGEZIP_FAILED, and nothing of use in the output, if a score is NaN or infinite.
PAGEZIP_API pagezip_status pagezip_select(const pagezip_select_args* args, void* workspace,
                                          size_t workspace_bytes);

/// Copies what pagezip_select() kept, in order: pair source_first + pairs[i] of the source becomes
/// pair target_first + i of the target, for every (layer, head) of the layers asked for. The bits
/// stay; only the order of keys may change.
typedef struct pagezip_compact_args {
  size_t size;
  const pagezip_page* source_page;
  const pagezip_segment* source;
  const pagezip_page* target_page;  // of the same types and head_dim; or NULL: as the source's
  const pagezip_segment* target;    // long enough
  int32_t layer_begin;
  int32_t layer_end;
  int32_t heads;          // KV heads
  const uint64_t* first;  // as pagezip_select() wrote them
  const uint32_t* pairs;
  int64_t source_first;  // commonly the length of the system prefix
  int64_t target_first;
} pagezip_compact_args;

PAGEZIP_API pagezip_status pagezip_compact(const pagezip_compact_args* args);

/// into = into merged with from: two attentions of the same queries over different pairs, each
/// divided by its own sum, become the attention over all of them.
typedef struct pagezip_merge_args {
  size_t size;
  int64_t rows;
  int32_t heads;
  int32_t head_dim;
  float* into_out;  // [rows, heads * head_dim]
  int64_t into_out_stride;
  float* into_lse;  // [rows, heads], natural log; -inf: over no pair
  int64_t into_lse_stride;
  const float* from_out;
  int64_t from_out_stride;
  const float* from_lse;
  int64_t from_lse_stride;
} pagezip_merge_args;

PAGEZIP_API pagezip_status pagezip_merge(const pagezip_merge_args* args);

// ---- documents ----------------------------------------------------------------------------------
//
// Compressed documents in an arena of yours, in blocks that you hand out: for a serving stack that
// has a KV pool and an allocator already.

/// Who hands out blocks. Called during the calls below that make, load and drop documents, on their
/// thread; may not call back into the pool.
typedef struct pagezip_block_source {
  size_t size;
  void* user;
  /// Writes the ids of `count` blocks that nobody uses, and returns 0. Anything else: there aren't
  /// so many, and none is taken.
  int (*take)(void* user, uint32_t* ids, size_t count);
  void (*give_back)(void* user, const uint32_t* ids, size_t count);
} pagezip_block_source;

/// How the pages of a block lie in it. In a vLLM pool that all layers share, [blocks, kv_heads,
/// layers, 2, page_tokens, head_dim], heads come first and keys are plain.
typedef enum pagezip_block_order {
  PAGEZIP_LAYERS_FIRST = 0,  // [layers, kv_heads] pages
  PAGEZIP_HEADS_FIRST = 1,   // [kv_heads, layers] pages
} pagezip_block_order;

typedef struct pagezip_pool_options {
  size_t size;
  const pagezip_page* page;
  int32_t layers;  // of full attention; layers with a sliding window stay yours
  int32_t kv_heads;
  pagezip_block_order order;
  void* base;      // block b begins at base + b * layers * kv_heads * page bytes; aligned to 64
  int64_t blocks;  // fewer than 2^32 pages in all
  const pagezip_block_source* source;  // NULL: all blocks are the pool's while it lives
} pagezip_pool_options;

/// A pool in your arena. The arena and what `source` points to (its `user`) must outlive the pool
/// and all its documents.
///
/// Thread rule: calls on a pool and on its documents come from one thread at a time. Pages of
/// documents may be read from any number of threads.
typedef struct pagezip_pool pagezip_pool;

PAGEZIP_API pagezip_status pagezip_pool_create(const pagezip_pool_options* options,
                                               pagezip_pool** pool);
/// Documents keep what they need of it. NULL is allowed.
PAGEZIP_API void pagezip_pool_destroy(pagezip_pool* pool);

/// An immutable compressed document: what every (layer, head) kept, in pages of its own. Thread
/// rule: the pool's.
typedef struct pagezip_document pagezip_document;

typedef struct pagezip_document_spec {
  size_t size;
  const pagezip_segment* source;  // the prefilled pairs, uniform from position 0: prefix, then text
  const pagezip_page* source_page;  // NULL: as the pool's. Types and head_dim must be the pool's
  int64_t prefix_length;            // pairs that are always kept (system prompt)
  const float* scores;              // [layers, kv_heads, text pairs] by these strides, in floats
  int64_t layer_stride;
  int64_t head_stride;
  double keep_ratio;  // of the text's pairs, in (0, 1]
  int32_t uniform;    // not 0: the same number for every (layer, head)
  int64_t min_per_head;
  const int32_t* tokens;  // [source length], which a file needs; or NULL
  uint64_t model[4];      // hashes of weights, tokenizer, RoPE and chat template, for files
} pagezip_document_spec;

/// Selects, takes blocks, copies. Afterwards the source isn't needed any more.
/// PAGEZIP_OUT_OF_MEMORY if the source of blocks has too few: nothing is taken then.
PAGEZIP_API pagezip_status pagezip_document_create(pagezip_pool* pool,
                                                   const pagezip_document_spec* spec,
                                                   pagezip_document** document);

/// Writes the document to one file, durably: after a crash `path` has the old or the new file.
/// PAGEZIP_INVALID if the document has no tokens.
PAGEZIP_API pagezip_status pagezip_document_save(const pagezip_document* document,
                                                 const char* path);
/// PAGEZIP_BAD_FILE for a file that is damaged, or whose model or pages are others.
PAGEZIP_API pagezip_status pagezip_document_load(pagezip_pool* pool, const char* path,
                                                 const uint64_t model[4],
                                                 pagezip_document** document);
/// Gives its blocks back. NULL is allowed.
PAGEZIP_API void pagezip_document_drop(pagezip_document* document);

typedef struct pagezip_document_info {
  size_t size;
  int64_t length;  // positions: where a question starts
  int64_t prefix_length;
  int64_t pairs;  // held, over all (layer, head)
  int64_t blocks;
  int64_t bytes;          // of the blocks
  const int32_t* tokens;  // [length], or NULL
} pagezip_document_info;

PAGEZIP_API pagezip_status pagezip_document_get_info(const pagezip_document* document,
                                                     pagezip_document_info* info);
/// What pagezip_attend() reads: the first segment of a question's view. Valid while the document
/// is.
PAGEZIP_API pagezip_status pagezip_document_get_segment(const pagezip_document* document,
                                                        pagezip_segment* segment);

#ifdef __cplusplus
}  // extern "C"
#endif
