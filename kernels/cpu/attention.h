// Attention and scores of the CPU backend.
#pragma once

#include "kernels/kernels.h"

namespace pagezip::cpu {

void attend(const AttendArgs& args, ThreadPool& pool);
void score(const ScoreArgs& args, ThreadPool& pool);
size_t attend_scratch(const AttendArgs& args, int threads);
size_t score_scratch(const ScoreArgs& args, int threads);

}  // namespace pagezip::cpu
