// The rules of this code that a compiler does not check, checked over the whole source tree.
//
// Each rule is a function from a source file to what is wrong with it, so that the tests below can
// also show that it fails on a bad text. The rules are explained in docs/ARCHITECTURE.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pagezip {
namespace {

using Findings = std::vector<std::string>;

constexpr int kFileLinesMax = 500;
constexpr int kFunctionLinesMax = 70;

// Copies `text` with comments and literals blanked, line breaks kept.
std::string blank_comments_and_literals(const std::string& text) {
  std::string code = text;
  const auto blank = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < std::min(end, code.size()); ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
    return std::min(end, code.size());
  };
  const auto after = [&](std::string_view what, size_t from) {
    const size_t found = text.find(what, from);
    return found == std::string::npos ? text.size() : found + what.size();
  };
  const auto is_word = [&](size_t i) { return std::isalnum(static_cast<unsigned char>(text[i])); };
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      i = blank(i, text.find('\n', i));
    } else if (text.compare(i, 2, "/*") == 0) {
      i = blank(i, after("*/", i + 2));
    } else if (text.compare(i, 2, "R\"") == 0) {
      const size_t open = std::min(text.find('(', i), text.size());
      // Not "+": GCC 12 warns of an overlap that can't be (PR105329).
      std::string close(1, ')');
      close.append(text, i + 2, open - i - 2).push_back('"');
      i = blank(i, after(close, open));
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !is_word(i - 1)))) {
      size_t end = i + 1;
      while (end < text.size() && text[end] != text[i]) end += text[end] == '\\' ? 2 : 1;
      i = blank(i, end + 1);
    } else {
      ++i;
    }
  }
  return code;
}

struct SourceFile {
  SourceFile(std::string p, std::string t)
      : path(std::move(p)), text(std::move(t)), code(blank_comments_and_literals(text)) {}

  std::string folder() const { return path.substr(0, path.find('/')); }
  bool is_header() const {
    return path.ends_with(".h") || path.ends_with(".hpp") || path.ends_with(".cuh");
  }
  std::string where(int64_t line) const { return path + ":" + std::to_string(line) + ": "; }

  std::string path;  // from the root of the tree
  std::string text;
  std::string code;  // without comments and literals
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

int64_t line_at(const std::string& text, size_t offset) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
}

// ---- rules of one file --------------------------------------------------------------------------

// What a folder may include. Folders that aren't here (tests, bench) may include anything.
const std::map<std::string, std::set<std::string>>& ladder() {
  static const std::map<std::string, std::set<std::string>> ladder = {
      {"base", {"base"}},
      {"kernels", {"base", "kernels"}},
      {"paging", {"base", "paging"}},
      {"scheduler", {"base", "paging", "scheduler"}},
      {"engine", {"base", "kernels", "paging", "scheduler", "engine"}},
      {"api", {"base", "kernels", "paging", "scheduler", "engine", "api"}},
  };
  return ladder;
}

// Headers of plain data, open to the folders beside their own.
bool is_shared_data(const std::string& header) { return header == "kernels/kv_view.h"; }

// The headers that are installed: they include each other as they lie there, side by side.
bool is_installed(const std::string& path) { return path.starts_with("api/pagezip"); }

Findings check_includes(const SourceFile& file) {
  static const std::regex include(R"re(^\s*#\s*include\s*(["<])([^">]*)[">])re");
  const auto allowed = ladder().find(file.folder());
  Findings findings;
  if (allowed == ladder().end()) return findings;
  const std::vector<std::string> lines = lines_of(file.text);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_search(lines[i], match, include)) continue;
    const std::string header = match[2];
    const std::string where = file.where(static_cast<int64_t>(i) + 1);
    if (match[1] == "\"" && !is_shared_data(header) &&
        !(is_installed(file.path) && is_installed("api/" + header)) &&
        !allowed->second.contains(header.substr(0, header.find('/')))) {
      findings.push_back(where + file.folder() + "/ may not include " + header);
    }
    if (header.starts_with("boost/") && file.folder() != "api") {
      findings.push_back(where + "Boost stays out of engine/ and below");
    }
  }
  return findings;
}

Findings check_file_length(const SourceFile& file) {
  const size_t lines = lines_of(file.text).size();
  if (lines <= kFileLinesMax) return {};
  return {file.path + ": " + std::to_string(lines) + " lines; at most " +
          std::to_string(kFileLinesMax)};
}

Findings check_pragma_once(const SourceFile& file) {
  if (!file.is_header() || file.text.find("\n#pragma once\n") != std::string::npos) return {};
  return {file.path + ": no #pragma once"};
}

Findings check_no_notes(const SourceFile& file) {
  static const std::regex note(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X)\\b");
  Findings findings;
  const std::vector<std::string> lines = lines_of(file.text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (std::regex_search(lines[i], note)) {
      findings.push_back(file.where(static_cast<int64_t>(i) + 1) + "finish it or file an issue");
    }
  }
  return findings;
}

// Whether the text between the last statement and a '{' starts a function or a named lambda.
bool starts_function(std::string head) {
  static const std::regex templates(R"(template\s*<[^{}()]*>)");
  static const std::regex scope(R"(^\s*(\w+ )*(namespace|class|struct|union|enum)\b)");
  // A macro on a line of its own, such as one that sets attributes.
  static const std::regex macro_line(R"((^|\n)[A-Z][A-Z0-9_]*\([^\n]*\)[ ]*(?=\n))");
  head = std::regex_replace(std::regex_replace(head, templates, ""), macro_line, "");
  return head.find(')') != std::string::npos && !std::regex_search(head, scope);
}

// Matches braces; macros are skipped. Nested functions count as part of the outer one.
Findings check_function_length(const SourceFile& file) {
  static const std::regex directive(R"((^|\n)[ \t]*#([^\n]*\\\n)*[^\n]*)");
  std::string code = file.code;
  for (std::sregex_iterator it(file.code.begin(), file.code.end(), directive), end; it != end;
       ++it) {
    for (size_t i = 0; i < static_cast<size_t>(it->length()); ++i) {
      char& c = code[static_cast<size_t>(it->position()) + i];
      if (c != '\n') c = ' ';
    }
  }
  Findings findings;
  size_t head = 0;           // behind the last ; { or }
  int depth = 0;             // of braces
  int function_depth = 0;    // of the brace that opened the function in hand; 0: none
  size_t function_head = 0;  // where it starts
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i] == '{') {
      ++depth;
      if (function_depth == 0 && starts_function(code.substr(head, i - head))) {
        function_depth = depth;
        function_head = std::min(code.find_first_not_of(" \n", head), i);
      }
    } else if (code[i] == '}' && depth-- == function_depth) {
      const int64_t first = line_at(code, function_head);
      const int64_t lines = line_at(code, i) - first + 1;
      if (lines > kFunctionLinesMax) {
        findings.push_back(file.where(first) + "function of " + std::to_string(lines) +
                           " lines; at most " + std::to_string(kFunctionLinesMax));
      }
      function_depth = 0;
    }
    if (code[i] == '{' || code[i] == '}' || code[i] == ';') head = i + 1;
  }
  if (depth != 0) findings.push_back(file.path + ": unbalanced braces");
  return findings;
}

// ---- determinism: scheduler/, paging/ and engine/ get time and randomness from outside ----------

struct BannedCall {
  const char* pattern;
  const char* reason;
};
constexpr BannedCall kBannedCalls[] = {
    {R"(\brandom_device\b)", "randomness comes from base/prng.h"},
    {R"(\bs?rand\()", "randomness comes from base/prng.h"},
    {R"(\bshuffle\()", "its result is not fixed by the standard"},
    {R"(\b\w+_distribution\b)", "its result is not fixed by the standard"},
    {R"(_clock::now\b)", "time comes from outside"},
    {R"(\btime\((nullptr|NULL|0|&))", "time comes from outside"},
    {R"(\bthis_thread\b)", "these folders know no threads of their own"},
};

struct Exception {
  const char* path;
  const char* pattern;  // of kBannedCalls
  const char* reason;
};
constexpr Exception kExceptions[] = {
    {"engine/pipeline.cc", R"(_clock::now\b)",
     "reports how long an answer took; no result depends on it"},
};

bool is_deterministic_folder(const std::string& folder) {
  return folder == "scheduler" || folder == "paging" || folder == "engine";
}

Findings check_banned_calls(const SourceFile& file) {
  Findings findings;
  if (!is_deterministic_folder(file.folder())) return findings;
  for (const BannedCall& banned : kBannedCalls) {
    const bool excepted = std::any_of(
        std::begin(kExceptions), std::end(kExceptions), [&](const Exception& exception) {
          return file.path == exception.path && exception.pattern == std::string(banned.pattern);
        });
    std::smatch match;
    if (!excepted && std::regex_search(file.code, match, std::regex(banned.pattern))) {
      findings.push_back(file.where(line_at(file.code, static_cast<size_t>(match.position()))) +
                         match.str() + ": " + banned.reason);
    }
  }
  return findings;
}

// Names of variables of type std::unordered_*.
std::set<std::string> unordered_names(const std::string& code) {
  static const std::regex name(R"(^[&\s]*(\w+))");
  std::set<std::string> names;
  for (size_t at = code.find("unordered_"); at != std::string::npos;
       at = code.find("unordered_", at + 1)) {
    size_t end = at;
    while (end < code.size() &&
           (std::isalnum(static_cast<unsigned char>(code[end])) || code[end] == '_'))
      ++end;
    if (end == code.size() || code[end] != '<') continue;
    int depth = 0;
    do {
      depth += code[end] == '<' ? 1 : code[end] == '>' ? -1 : 0;
    } while (++end < code.size() && depth > 0);
    std::smatch match;
    const std::string rest = code.substr(end, 80);
    if (std::regex_search(rest, match, name)) names.insert(match[1]);
  }
  return names;
}

// `header`: the code of the file's own header, which may declare its members.
Findings check_unordered_iteration(const SourceFile& file, const std::string& header) {
  Findings findings;
  if (!is_deterministic_folder(file.folder())) return findings;
  for (const std::string& name : unordered_names(header + "\n" + file.code)) {
    const std::regex iteration("for \\([^;{}]*: \\s*" + name + "\\)|\\b" + name + "\\.c?begin\\(");
    std::smatch match;
    if (std::regex_search(file.code, match, iteration)) {
      findings.push_back(file.where(line_at(file.code, static_cast<size_t>(match.position()))) +
                         "the order of " + name + " is not fixed");
    }
  }
  return findings;
}

Findings check_portable_flags(const SourceFile& file) {
  if (file.text.find("march="
                     "native") == std::string::npos)
    return {};
  return {file.path + ": the instruction set is chosen at run time, not by the build"};
}

// ---- the tree -----------------------------------------------------------------------------------

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// All files with one of these extensions, sorted by path.
std::vector<SourceFile> tree(const std::set<std::string>& extensions) {
  const std::filesystem::path root = PAGEZIP_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (std::filesystem::recursive_directory_iterator it(root), end; it != end; ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_directory()) {
      if (name.starts_with(".") || name.starts_with("build")) it.disable_recursion_pending();
    } else if (extensions.contains(it->path().extension().string())) {
      files.emplace_back(it->path().lexically_relative(root).generic_string(),
                         read_file(it->path()));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

const std::vector<SourceFile>& sources() {
  static const std::vector<SourceFile> files = tree({".h", ".hpp", ".c", ".cc", ".cu", ".cuh"});
  return files;
}

void expect_none(const Findings& findings) {
  for (const std::string& finding : findings) ADD_FAILURE() << finding;
}

TEST(Tidy, FindsTheTree) {
  EXPECT_GT(sources().size(), 50U);
  for (const char* path : {"base/check.h", "engine/pipeline.cc", "tests/tidy_test.cc"}) {
    EXPECT_TRUE(std::any_of(sources().begin(), sources().end(), [&](const SourceFile& file) {
      return file.path == path;
    })) << path;
  }
}

TEST(Tidy, IncludesFollowTheLadder) {
  for (const SourceFile& file : sources()) expect_none(check_includes(file));
}

TEST(Tidy, FilesAndFunctionsAreShort) {
  for (const SourceFile& file : sources()) {
    expect_none(check_file_length(file));
    expect_none(check_function_length(file));
  }
}

TEST(Tidy, HeadersAreIncludedOnce) {
  for (const SourceFile& file : sources()) expect_none(check_pragma_once(file));
}

TEST(Tidy, NothingIsLeftToDo) {
  for (const SourceFile& file : sources()) expect_none(check_no_notes(file));
}

TEST(Tidy, ResultsDoNotDependOnTimeOrChance) {
  for (const SourceFile& file : sources()) {
    std::string header = file.path.substr(0, file.path.rfind('.')) + ".h";
    const auto own = std::find_if(sources().begin(), sources().end(), [&](const SourceFile& other) {
      return other.path == header && other.path != file.path;
    });
    expect_none(check_banned_calls(file));
    expect_none(check_unordered_iteration(file, own == sources().end() ? "" : own->code));
  }
}

TEST(Tidy, ExceptionsAreNeeded) {
  for (const Exception& exception : kExceptions) {
    EXPECT_TRUE(std::any_of(sources().begin(), sources().end(),
                            [&](const SourceFile& file) {
                              return file.path == exception.path &&
                                     std::regex_search(file.code, std::regex(exception.pattern));
                            }))
        << exception.path << " needs no exception any more";
  }
}

TEST(Tidy, BuildIsPortable) {
  for (const SourceFile& file : tree({".txt", ".cmake", ".json"})) {
    if (file.folder() != "tests" || file.path.ends_with("CMakeLists.txt")) {
      expect_none(check_portable_flags(file));
    }
  }
}

// ---- the rules can fail -------------------------------------------------------------------------

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TidyRules, BlanksCommentsAndLiterals) {
  EXPECT_EQ(blank_comments_and_literals("a; // {\nb \"}\\\"\" c '{' 1'000 /*\n*/ d"),
            "a;     \nb       c     1'000   \n   d");
  EXPECT_EQ(blank_comments_and_literals("x R\"re(\")\")re\" y"), "x              y");
}

TEST(TidyRules, Includes) {
  const auto check = [](const char* path, const char* text) {
    return check_includes(SourceFile(path, text));
  };
  EXPECT_THAT(check("paging/a.h", "#include \"base/ids.h\"\n#include \"engine/model.h\"\n"),
              ElementsAre("paging/a.h:2: paging/ may not include engine/model.h"));
  EXPECT_THAT(check("paging/a.h", "#include \"kernels/kv_view.h\"\n"), IsEmpty());
  EXPECT_THAT(check("paging/a.h", "#include \"kernels/kernels.h\"\n").size(), 1U);
  EXPECT_THAT(check("base/a.h", "#include \"a.h\"\n").size(), 1U);
  EXPECT_THAT(check("engine/a.cc", "#include <boost/asio.hpp>\n"), ElementsAre(HasSubstr("Boost")));
  EXPECT_THAT(check("api/http/a.cc", "#include <boost/asio.hpp>\n"), IsEmpty());
  EXPECT_THAT(check("tests/a.cc", "#include \"api/cli/ask.h\"\n"), IsEmpty());
}

TEST(TidyRules, Lengths) {
  const auto lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "  f();\n";
    return text;
  };
  const auto functions = [](const std::string& text) {
    return check_function_length(SourceFile("base/a.cc", text));
  };
  EXPECT_THAT(check_file_length(SourceFile("base/a.cc", lines(500))), IsEmpty());
  EXPECT_THAT(check_file_length(SourceFile("base/a.cc", lines(501))).size(), 1U);
  EXPECT_THAT(functions("\nint f(int a) {\n" + lines(68) + "}\n"), IsEmpty());
  EXPECT_THAT(functions("\nint f(int a) {\n" + lines(69) + "}\n"),
              ElementsAre("base/a.cc:2: function of 71 lines; at most 70"));
  EXPECT_THAT(functions("class A final : public B {\n  template <class T>\n  void f() {\n" +
                        lines(69) + "  }\n};\n"),
              ElementsAre(HasSubstr("a.cc:2: function of 72")));
  EXPECT_THAT(functions("A::A() : b_{1} {\n" + lines(40) + "}\nint f() {\n" + lines(40) + "}\n"),
              IsEmpty());
  EXPECT_THAT(functions("namespace {\nstruct A {\n" + lines(90) + "};\n}\n"), IsEmpty());
  EXPECT_THAT(functions("#define F(x) if (x) { \\\n  g(\n\nint f() {\n" + lines(69) + "}\n").size(),
              1U);
  EXPECT_THAT(functions("PUSH_ATTRIBUTES(\"a\")\n\nnamespace a {\n" + lines(90) + "}\n"),
              IsEmpty());
  EXPECT_THAT(functions("int f() { {\n}\n"), ElementsAre(HasSubstr("unbalanced")));
}

TEST(TidyRules, PragmaOnceAndNotes) {
  EXPECT_THAT(check_pragma_once(SourceFile("base/a.h", "// a\n#pragma once\n")), IsEmpty());
  EXPECT_THAT(check_pragma_once(SourceFile("base/a.h", "// a\n")).size(), 1U);
  EXPECT_THAT(check_pragma_once(SourceFile("base/a.cc", "// a\n")), IsEmpty());
  EXPECT_THAT(check_no_notes(SourceFile("base/a.h",
                                        "// a\n// TO"
                                        "DO: b\n")),
              ElementsAre(HasSubstr("base/a.h:2")));
  EXPECT_THAT(check_portable_flags(SourceFile("CMakeLists.txt",
                                              "-march="
                                              "native"))
                  .size(),
              1U);
}

TEST(TidyRules, BannedCalls) {
  const auto check = [](const char* path, const char* text) {
    return check_banned_calls(SourceFile(path, text));
  };
  for (const char* bad : {"std::random_device d;", "int i = rand();", "std::shuffle(a, b, g);",
                          "std::uniform_int_distribution<int> d;", "steady_clock::now()",
                          "time(nullptr)", "std::this_thread::yield();"}) {
    EXPECT_THAT(check("paging/a.cc", bad).size(), 1U) << bad;
    EXPECT_THAT(check("kernels/a.cc", bad), IsEmpty()) << bad;
  }
  EXPECT_THAT(check("engine/pipeline.cc", "steady_clock::now()"), IsEmpty());
  EXPECT_THAT(check("engine/pipeline.cc", "rand()").size(), 1U);
  EXPECT_THAT(check("engine/a.cc", "// rand()\nint operand(int);\nint runtime(int);"), IsEmpty());
}

TEST(TidyRules, UnorderedIteration) {
  const auto check = [](const char* header, const char* text) {
    return check_unordered_iteration(SourceFile("engine/a.cc", text), header);
  };
  const char* member = "std::unordered_map<int, std::vector<int>> map_;";
  EXPECT_THAT(check(member, "int a;\nfor (const auto& [k, v] : map_) {}"),
              ElementsAre("engine/a.cc:2: the order of map_ is not fixed"));
  EXPECT_THAT(check("", "std::unordered_set<int> s; std::sort(s.begin(), s.end());").size(), 1U);
  EXPECT_THAT(check(member, "map_.find(1); for (int i : list_) {}"), IsEmpty());
  EXPECT_THAT(check("", "for (int i : map_) {}"), IsEmpty());
}

}  // namespace
}  // namespace pagezip
