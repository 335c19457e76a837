/* The C ABI's header is C: compiled as C11 with all warnings as errors, and called from C. */
#include "api/pagezip.h"

pagezip_status select_from_c(const float* scores, int64_t tokens, int64_t keep, uint64_t first[2],
                             uint32_t* pairs) {
  _Alignas(64) unsigned char workspace[1 << 16];
  pagezip_select_args args = {.size = sizeof args};
  args.scores = scores;
  args.tokens = tokens;
  args.layers = 1;
  args.heads = 1;
  args.keep = keep;
  args.first = first;
  args.pairs = pairs;
  args.pairs_max = keep;
  if (pagezip_select_workspace_bytes(&args) > sizeof workspace) {
    return PAGEZIP_OUT_OF_MEMORY;
  }
  return pagezip_select(&args, workspace, sizeof workspace);
}
