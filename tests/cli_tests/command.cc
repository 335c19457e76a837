#include "tests/cli_tests/command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "tests/cli_tests/tiny_model.h"

namespace pagezip {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience(60);

void replace_descriptor(int target, const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags, 0600);
  if (fd < 0 || dup2(fd, target) < 0) _exit(99);
}

[[noreturn]] void run_child(const std::vector<std::string>& arguments, const std::string& in,
                            const std::string& out, const std::string& err) {
  replace_descriptor(STDIN_FILENO, in, O_RDONLY);
  replace_descriptor(STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC);
  replace_descriptor(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<char*> argv = {const_cast<char*>(PAGEZIP_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(PAGEZIP_BINARY, argv.data());
  _exit(99);
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Command::Command(const std::string& folder, const std::vector<std::string>& arguments,
                 const std::string& input, const std::string& out_path)
    : out_path_(out_path.empty() ? folder + "/stdout" : out_path), err_path_(folder + "/stderr") {
  const std::string in_path = folder + "/stdin";
  std::ofstream(in_path, std::ios::binary) << input;
  std::ofstream(err_path_, std::ios::trunc).close();
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) run_child(arguments, in_path, out_path_, err_path_);
}

void Command::send(int signal) const { kill(pid_, signal); }

bool Command::ended() {
  reaped_ = reaped_ || waitpid(pid_, &status_, WNOHANG) == pid_;
  return reaped_;
}

bool Command::wait_for_progress(const std::string& text) {
  const auto start = Clock::now();
  while (read_file(err_path_).find(text) == std::string::npos) {
    if (ended() || Clock::now() - start > kPatience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

Outcome Command::finish() {
  const auto start = Clock::now();
  while (!ended()) {
    if (Clock::now() - start > kPatience) send(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {code, out_path_.starts_with("/dev/") ? "" : read_file(out_path_), read_file(err_path_)};
}

void CliTest::SetUp() {
  TinyModel().writer().write(path("model.gguf"));
  std::string document;
  for (int i = 0; i < 40; ++i) document += "Line " + std::to_string(i) + " tells abc.\n";
  write("document.txt", document);
}

void CliTest::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
}

Outcome CliTest::run(const std::vector<std::string>& arguments, const std::string& input,
                     const std::string& out_path) const {
  return Command(folder_.path(), arguments, input, out_path).finish();
}

std::vector<std::string> CliTest::ask_arguments(const std::vector<std::string>& more) const {
  std::vector<std::string> arguments = {"ask"};
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"--model", path("model.gguf")},
                                                        {"--document", path("document.txt")},
                                                        {"--question", "hi"},
                                                        {"--threads", "1"},
                                                        {"--max-tokens", "8"}}) {
    if (std::find(more.begin(), more.end(), name) == more.end()) {
      arguments.insert(arguments.end(), {name, value});
    }
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_error(const Outcome& outcome, int code, const std::string& fragment) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_NE(outcome.err.find(fragment), std::string::npos) << outcome.err;
  const size_t line = outcome.err.find("pagezip: ");
  ASSERT_NE(line, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n', line), outcome.err.size() - 1) << outcome.err;
}

}  // namespace pagezip
