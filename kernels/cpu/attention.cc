// Runs a plan: first the units that are computed in advance, then every tile to its end.
#include "kernels/cpu/attention.h"

#include "base/check.h"
#include "kernels/cpu/attention_plan.h"

namespace pagezip::cpu {
namespace {

void compute_run(const AttendArgs& args, const Run& run, const TileScratch& scratch) {
  const Tile& tile = *run.tile;
  const Slots& slots = *run.slots;
  int64_t unit = 0;
  load_queries(args, tile, scratch.q);
  for_units(args.page, tile, [&](const UnitRef& ref) {
    const int64_t index = unit++;
    if (index < run.first_unit || index >= run.end_unit) {
      return;
    }
    const int64_t slot = slots.slot_of(index);
    const bool is_first = index == 0 || index >= slots.folded;  // of its slot
    TileScratch target = scratch;
    if (is_first) {
      target.states = slots.states(slot, run.first_query_row);
      target.unit = slots.outputs(slot, run.first_query_row);
    }
    compute_unit(args, tile, ref, target);
    if (!is_first) {
      merge_results(target.states, target.unit, tile.query_rows, slots.head_dim,
                    slots.states(slot, run.first_query_row),
                    slots.outputs(slot, run.first_query_row));
    }
  });
}

void merge_slots(const Slots& slots, int64_t first_query_row, const Tile& tile,
                 const TileScratch& scratch) {
  for (int64_t slot = 0; slot < slots.count; ++slot) {
    merge_results(slots.states(slot, first_query_row), slots.outputs(slot, first_query_row),
                  tile.query_rows, slots.head_dim, scratch.merged, scratch.out);
  }
}

void finish_tile(const AttendArgs& args, const SpanTile& tile, const TileScratch& scratch) {
  std::fill(scratch.merged, scratch.merged + tile.query_rows, SoftmaxState<float>{});
  std::fill(scratch.score_merged, scratch.score_merged + tile.query_rows, SoftmaxState<float>{});
  if (tile.shared != nullptr) {
    const int64_t row = tile.rows - tile.shared->rows.data();
    merge_slots(tile.shared->slots, row * (args.heads / args.kv_heads), tile, scratch);
  }
  if (tile.slots.count > 0) {
    merge_slots(tile.slots, 0, tile, scratch);
  } else {
    load_queries(args, tile, scratch.q);
    for_units(args.page, tile, [&](const UnitRef& ref) {
      compute_unit(args, tile, ref, scratch);
      if (args.out.data != nullptr) {
        merge_results(scratch.states, scratch.unit, tile.query_rows, args.page.head_dim,
                      scratch.merged, scratch.out);
      }
    });
  }
  write_tile(args, tile, scratch);
}

}  // namespace

size_t attend_scratch(const AttendArgs& args, int threads) {
  return AttentionPlan::bytes(args, threads);
}

void attend(const AttendArgs& args, ThreadPool& pool) {
  check_floats(args.page);
  CHECK(args.score == nullptr || args.spans.size() == 1);
  CHECK(args.score != nullptr || args.out.data != nullptr);
  CHECK(args.lse.data == nullptr || args.out.data != nullptr);
  const size_t bytes = AttentionPlan::bytes(args, pool.threads());
  const AttentionPlan plan(args, pool.threads(), pool.shared_scratch(bytes));
  pool.parallel_for(static_cast<int64_t>(plan.runs().size()), [&](int64_t i, int thread) {
    const Run& run = plan.runs()[static_cast<size_t>(i)];
    compute_run(args, run, plan.scratch(thread, *run.tile));
  });
  pool.parallel_for(static_cast<int64_t>(plan.tiles().size()), [&](int64_t i, int thread) {
    const SpanTile& tile = plan.tiles()[static_cast<size_t>(i)];
    finish_tile(args, tile, plan.scratch(thread, tile));
  });
}

}  // namespace pagezip::cpu
