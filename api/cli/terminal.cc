#include "api/cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "api/cli/signals.h"
#include "base/error.h"

namespace pagezip {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool is_dumb() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::strcmp(term, "dumb") == 0;
}

int stderr_columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Progress that can't be shown is no reason to stop the work.
void show(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

Output::Output()
    : is_terminal_(isatty(STDOUT_FILENO) == 1),
      has_style_(is_terminal_ && !is_set("NO_COLOR") && !is_dumb()) {}

void Output::write(std::string_view text) {
  errno = 0;
  const size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written != text.size() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Error(ErrorKind::kOutput,
                fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  }
}

void Output::write_untrusted(std::string_view text) {
  if (!is_terminal_) {
    write(text);
    return;
  }
  std::string safe(text);
  std::replace_if(
      safe.begin(), safe.end(),
      [](char c) { return (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == '\x7f'; }, '?');
  write(safe);
}

std::string Output::styled(std::string_view code, std::string_view text) const {
  return has_style_ ? fmt::format("{}{}\x1b[0m", code, text) : std::string(text);
}

Progress::Progress()
    : is_live_(isatty(STDERR_FILENO) == 1 && !is_set("NO_COLOR") && !is_set("CI") && !is_dumb()) {}

Progress::~Progress() {
  if (name_ != nullptr) {
    clear();
  }
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void Progress::start(const char* name, const char* unit, int64_t total) {
  name_ = name;
  unit_ = unit;
  total_ = total;
  start_ = Clock::now();
  drawn_ = start_;
  draw(0);
}

bool Progress::advance(int64_t done) {
  constexpr std::chrono::milliseconds kRedraw(100);
  if (is_live_ && Clock::now() - drawn_ >= kRedraw) {
    drawn_ = Clock::now();
    draw(std::min(done, total_));
  }
  return interrupting_signal() == 0;
}

double Progress::finish() {
  const double elapsed = seconds();
  clear();
  const auto rate = static_cast<int64_t>(static_cast<double>(total_) / std::max(elapsed, 1e-6));
  show(fmt::format("{:<8} {:>9} {:<7} {:>8.2f} s {:>11} {}/s\n", name_, group_digits(total_), unit_,
                   elapsed, group_digits(rate), unit_));
  name_ = nullptr;
  return elapsed * 1000;
}

void Progress::draw(int64_t done) {
  if (!is_live_) {
    return;
  }
  std::string line =
      fmt::format("{:<8} {:>9} of {} {}", name_, group_digits(done), group_digits(total_), unit_);
  if (done > 0) {
    const double rate = static_cast<double>(done) / seconds();
    line +=
        fmt::format("   {:.0f}/s   {:.0f} s left", rate, static_cast<double>(total_ - done) / rate);
  }
  line.resize(std::min(line.size(), static_cast<size_t>(stderr_columns() - 1)));
  show(fmt::format("\r\x1b[K{}", line));
}

void Progress::clear() {
  if (is_live_) {
    show("\r\x1b[K");
  }
}

std::string group_digits(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

}  // namespace pagezip
