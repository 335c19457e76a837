// Attention and scores of the CPU backend.
#pragma once

#include "kernels/kernels.h"

namespace pagezip::cpu {

void attend(const AttendArgs& args, ThreadPool& pool);
void score(const ScoreArgs& args, ThreadPool& pool);

}  // namespace pagezip::cpu
