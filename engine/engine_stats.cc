#include "engine/engine_stats.h"

namespace pagezip {

void EngineStats::update(const Scheduler& scheduler, const BlockPool& pool,
                         const PrefixIndex& index, const DocumentStore& store, TimeUs now) {
  constexpr TimeUs kSecond = 1'000'000;
  work = scheduler.stats();
  histograms = scheduler.histograms();
  cache = index.stats();
  documents = store.stats();
  blocks_total = pool.blocks_total();
  blocks_free = pool.blocks_free();
  blocks_reserved = pool.blocks_reserved();
  if (now - idle_counted >= kSecond) {
    idle_counted = now;
    blocks_idle = index.blocks_idle();  // looks at every cached block
  }
}

}  // namespace pagezip
