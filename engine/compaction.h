// Copies the pairs that a document keeps into its own pages, layer by layer.
#pragma once

#include "kernels/kernels.h"
#include "paging/document.h"

namespace pagezip {

/// Of one layer of the global group, all heads. REQUIRES: the builder has its blocks.
void copy_layer(const DocumentBuilder& builder, const Kernels& kernels, ThreadPool& threads,
                int layer);

}  // namespace pagezip
