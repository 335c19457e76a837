// What the user sees: data on standard output, progress on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace pagezip {

/// Standard output. Every failed write is an Error(kOutput).
class Output {
 public:
  Output();
  /// Writes and flushes: answers appear as they grow.
  void write(std::string_view text);
  /// The same for text of a model: on a terminal, control characters can do nothing.
  void write_untrusted(std::string_view text);
  /// Bold or dim on a terminal, unchanged elsewhere.
  std::string bold(std::string_view text) const { return styled("\x1b[1m", text); }
  std::string dim(std::string_view text) const { return styled("\x1b[2m", text); }

 private:
  std::string styled(std::string_view code, std::string_view text) const;

  bool is_terminal_;
  bool has_style_;
};

/// Stages of work, one after the other. A terminal shows the current one with its rate and the time
/// left; elsewhere each gets one line when it is done.
class Progress {
 public:
  Progress();
  ~Progress();  // a stage that did not finish leaves no trace
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `unit` names what is counted, in the plural; both are string literals.
  void start(const char* name, const char* unit, int64_t total);
  /// False if the user wants to stop.
  bool advance(int64_t done);
  /// Milliseconds since start().
  double finish();

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const;
  void draw(int64_t done);
  void clear();

  bool is_live_;  // redraws its line
  const char* name_ = nullptr;
  const char* unit_ = nullptr;
  int64_t total_ = 0;
  Clock::time_point start_;
  Clock::time_point drawn_;
};

/// 1234567 as "1,234,567".
std::string group_digits(int64_t value);

}  // namespace pagezip
