// The operations of the CPU backend that read and write KV pages.
#pragma once

#include "kernels/kernels.h"

namespace pagezip::cpu {

void store_kv(const StoreKvArgs& args, ThreadPool& pool);
void copy_pairs(const CopyPairsArgs& args);
void attend(const AttendArgs& args, ThreadPool& pool);
void score(const ScoreArgs& args, ThreadPool& pool);

}  // namespace pagezip::cpu
