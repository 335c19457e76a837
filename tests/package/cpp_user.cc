// The installed C++ headers compile and link from outside of the tree, down to the engine.
#include <cstdio>
#include <vector>

#include "engine/engine.h"
#include "kernels/kernels.h"
#include "paging/selection.h"

int main() {
  const pagezip::ScoreSet scores{1, 2, 2, {0.1F, 0.4F, 0.3F, 0.2F}};
  const auto kept = std::get<pagezip::KeptSets>(pagezip::select_global(scores, 2, 0));
  const pagezip::Kernels& kernels = pagezip::cpu_kernels();
  std::printf("%s: %s\n", kernels.name, pagezip::cpu_kernels_isa().c_str());
  void (pagezip::Engine::*start)() = &pagezip::Engine::start;  // links the engine
  return kept.pairs == std::vector<uint32_t>{1, 0} && start != nullptr ? 0 : 1;
}
