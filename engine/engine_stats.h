// What an engine says about itself, for metrics: a copy, taken after every step.
#pragma once

#include <cstdint>

#include "paging/block_pool.h"
#include "paging/document_store.h"
#include "paging/prefix_index.h"
#include "scheduler/scheduler.h"

namespace pagezip {

struct EngineStats {
  Stats work;
  Histograms histograms;
  PrefixIndex::Stats cache;
  DocumentStore::Stats documents;
  int64_t blocks_total = 0;
  int64_t blocks_free = 0;
  int64_t blocks_reserved = 0;  // of the free ones, promised to what runs
  /// Cached prefixes that nobody reads: they go when memory is short. Counted once a second.
  int64_t blocks_idle = 0;
  TimeUs idle_counted = 0;

  void update(const Scheduler& scheduler, const BlockPool& pool, const PrefixIndex& index,
              const DocumentStore& store, TimeUs now);
};

}  // namespace pagezip
