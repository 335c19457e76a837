#include "api/cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace pagezip {
namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): all that a handler can reach.
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use no lock");

extern "C" void on_signal(int signal) {
  if (first_signal.exchange(signal) != 0) {
    _exit(128 + signal);
  }
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read of standard input must come back.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int interrupting_signal() { return first_signal.load(); }

}  // namespace pagezip
