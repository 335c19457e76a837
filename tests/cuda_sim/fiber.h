// A stackful fiber and the switch between it and its owner: callee-saved registers only, on x86-64
// and aarch64, with the notes that AddressSanitizer needs to follow a change of stacks.
//
// One owner per OS thread resumes fibers one at a time; a fiber gives control back by yield(). The
// rounding mode of floating point isn't part of a fiber.
#pragma once

#include <cstddef>
#include <memory>

namespace pagezip::cuda_sim {

class Fiber;

/// The stack that fibers are resumed from, as AddressSanitizer sees it.
struct FiberOwner {
  void* stack_pointer = nullptr;
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t bytes = 0;
};

class Fiber {
 public:
  explicit Fiber(size_t stack_bytes);

  /// The next resume() calls `entry` on a fresh stack; whatever ran there before is forgotten.
  /// REQUIRES: entry ends in finish().
  void start(void (*entry)());
  void resume(FiberOwner& owner);
  /// Called on the fiber. begin() comes first of all.
  void begin(FiberOwner& owner);
  void yield(FiberOwner& owner);
  [[noreturn]] void finish(FiberOwner& owner);
  /// False if the fiber wrote beyond the end of its stack.
  bool stack_is_intact() const;

 private:
  std::unique_ptr<std::byte[]> stack_;
  size_t bytes_;
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;
};

}  // namespace pagezip::cuda_sim
