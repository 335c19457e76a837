// Runs the pagezip binary as users do, and keeps the files that a test makes.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/temp_folder.h"

namespace pagezip {

struct Outcome {
  int code = -1;  // exit code; 128 + n if signal n killed it
  std::string out;
  std::string err;
};

/// A running pagezip. It is killed after a minute.
class Command {
 public:
  /// `out_path`: where standard output goes; "" keeps it for finish().
  Command(const std::string& folder, const std::vector<std::string>& arguments,
          const std::string& input, const std::string& out_path = "");
  void send(int signal) const;
  /// Waits until standard error has this text. False if the process ended or a minute went by.
  bool wait_for_progress(const std::string& text);
  Outcome finish();

 private:
  bool ended();

  int pid_;
  int status_ = 0;
  bool reaped_ = false;
  std::string out_path_;
  std::string err_path_;
};

std::string read_file(const std::string& path);

/// A folder with a tiny model and a document, for the time of a test.
class CliTest : public testing::Test {
 protected:
  void SetUp() override;

  std::string path(const std::string& name) const { return folder_.path(name); }
  void write(const std::string& name, const std::string& content) const;
  Outcome run(const std::vector<std::string>& arguments, const std::string& input = "",
              const std::string& out_path = "") const;
  /// ask --model model.gguf --document document.txt --question hi, where `more` doesn't say else.
  std::vector<std::string> ask_arguments(const std::vector<std::string>& more) const;
  Outcome ask(const std::vector<std::string>& more) const { return run(ask_arguments(more)); }

  const TempFolder folder_;
};

/// An error is one line on standard error, and nothing else than progress stands before it.
void expect_error(const Outcome& outcome, int code, const std::string& fragment);

}  // namespace pagezip
