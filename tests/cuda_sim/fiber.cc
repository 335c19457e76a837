#include "tests/cuda_sim/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the caller's registers on its stack and the stack pointer in *save, then goes on where the
// stack pointer `load` was saved.
extern "C" void pagezip_fiber_switch(void** save, void* load);

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type pagezip_fiber_switch, @function
pagezip_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pagezip_fiber_switch, .-pagezip_fiber_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type pagezip_fiber_switch, %function
pagezip_fiber_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size pagezip_fiber_switch, .-pagezip_fiber_switch
)");
#else
#error "no fiber switch for this processor"
#endif

namespace pagezip::cuda_sim {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr int kGuardByte = 0xa5;

#if defined(__x86_64__)
constexpr int kSavedWords = 7;  // six registers, then the return address
constexpr int kReturnWord = 6;
constexpr int kWordsAboveTop = 1;  // a function is entered with the stack 8 bytes off alignment
#else
constexpr int kSavedWords = 20;
constexpr int kReturnWord = 11;  // x30
constexpr int kWordsAboveTop = 0;
#endif

// GCC's sanitizers want to hear of each change of stacks before and after it. `fake` is null for a
// stack that is left for good.
void before_switch([[maybe_unused]] void** fake, [[maybe_unused]] const void* bottom,
                   [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, bottom, bytes);
#endif
}

void after_switch([[maybe_unused]] void* fake, [[maybe_unused]] const void** bottom,
                  [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, bottom, bytes);
#endif
}

}  // namespace

Fiber::Fiber(size_t stack_bytes)
    : stack_(std::make_unique_for_overwrite<std::byte[]>(stack_bytes)), bytes_(stack_bytes) {}

void Fiber::start(void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  // A launch that failed leaves frames behind that will never return.
  __asan_unpoison_memory_region(stack_.get(), bytes_);
#endif
  std::memset(stack_.get(), kGuardByte, kGuardBytes);
  const auto top = reinterpret_cast<uintptr_t>(stack_.get() + bytes_) & ~uintptr_t{15};
  void** words = reinterpret_cast<void**>(top) - kWordsAboveTop - kSavedWords;
  std::memset(words, 0, sizeof(void*) * (kSavedWords + kWordsAboveTop));
  words[kReturnWord] = reinterpret_cast<void*>(entry);
  stack_pointer_ = words;
  fake_stack_ = nullptr;
}

void Fiber::resume(FiberOwner& owner) {
  before_switch(&owner.fake_stack, stack_.get(), bytes_);
  pagezip_fiber_switch(&owner.stack_pointer, stack_pointer_);
  after_switch(owner.fake_stack, nullptr, nullptr);
}

void Fiber::begin(FiberOwner& owner) { after_switch(fake_stack_, &owner.bottom, &owner.bytes); }

void Fiber::yield(FiberOwner& owner) {
  before_switch(&fake_stack_, owner.bottom, owner.bytes);
  pagezip_fiber_switch(&stack_pointer_, owner.stack_pointer);
  after_switch(fake_stack_, &owner.bottom, &owner.bytes);
}

void Fiber::finish(FiberOwner& owner) {
  before_switch(nullptr, owner.bottom, owner.bytes);
  pagezip_fiber_switch(&stack_pointer_, owner.stack_pointer);
  std::abort();  // a finished fiber is not resumed
}

bool Fiber::stack_is_intact() const {
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (stack_[i] != std::byte{kGuardByte}) {
      return false;
    }
  }
  return true;
}

}  // namespace pagezip::cuda_sim
