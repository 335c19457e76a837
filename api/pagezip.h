// pagezip for other programs: a C ABI in three tiers, each of which can be used alone.
//
//   kernels    score, select, compact, attend, merge on your pages
//   documents  compressed documents in your arena, of blocks that your allocator hands out
//   engine     the whole: models, documents, requests, streams
//
// docs/EMBEDDING.md says which to take; examples/ has a program for each. Link libpagezip.so, which
// exports what stands here and nothing else. pagezip.hpp has owners and exceptions for C++.
//
// Conventions
// - Functions that can fail return a pagezip_status. What went wrong is text: pagezip_last_error().
//   No C++ exception leaves the library. Output parameters are written only with PAGEZIP_OK.
// - Structs begin with their size, so that they can grow: `pagezip_x x = {.size = sizeof x}` and
// then the
//   fields. A library that is older than the header refuses fields that it doesn't know unless they
//   are 0; fields that a newer library has and you don't know are 0.
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
} pagezip_status;

/// "0.1.0". Any thread.
PAGEZIP_API const char* pagezip_version(void);

/// One line about the last call of this thread that didn't return PAGEZIP_OK; "" if there is none.
/// Valid until this thread's next call.
PAGEZIP_API const char* pagezip_last_error(void);

// ---- kernels ------------------------------------------------------------------------------------
//
// Pure functions on memory of yours: they start no thread, allocate nothing, keep nothing and
// return when they are done. Any thread; calls that write different memory may run at once. Where a
// kernel needs memory beside its input and output you bring it: `..._workspace_bytes(args)` bytes,
// aligned to 64, with any contents. It is 0 for arguments that the kernel refuses.

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

#ifdef __cplusplus
}  // extern "C"
#endif
