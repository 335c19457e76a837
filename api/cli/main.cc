// pagezip: the command line. Exit codes are those of base/error.h, and 128 + the signal.
#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "api/cli/options.h"
#include "api/cli/signals.h"
#include "api/cli/terminal.h"
#include "api/cli/verbs.h"
#include "base/error.h"

namespace pagezip {
namespace {

int fail(ErrorKind kind, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "pagezip: %s\n", message.c_str());
  return static_cast<int>(kind);
}

void run_verb(const Options& options) {
  switch (options.verb) {
    case Verb::kAsk:
      return run_ask(options);
    case Verb::kCompress:
      return run_compress(options);
    case Verb::kQuery:
      return run_query(options);
    case Verb::kInspect:
      return run_inspect(options);
    case Verb::kScores:
      return run_scores(options);
    case Verb::kTokenize:
      return run_tokenize(options);
    case Verb::kServe:
      break;
  }
}

// Returns the exit code.
int run(int argc, const char* const* argv) {
  const ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.print.empty()) {
    Output().write(parsed.print);
    return 0;
  }
  if (parsed.options.verb == Verb::kServe) {
    return run_serve(parsed.options);  // deals with signals itself
  }
  install_signal_handlers();
  run_verb(parsed.options);
  return 0;
}

int run_and_catch(int argc, const char* const* argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return fail(error.kind(), error.what());
  } catch (const Cancelled&) {
    std::fputs("pagezip: interrupted\n", stderr);
    return 128 + interrupting_signal();
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return fail(ErrorKind::kRuntime, error.what());
  }
}

}  // namespace
}  // namespace pagezip

int main(int argc, char** argv) { return pagezip::run_and_catch(argc, argv); }
