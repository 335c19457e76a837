// The web page's own files (api/http/page/): short, and safe whatever users and models write.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace pagezip {
namespace {

// What a file has that it may not; "" if there is nothing.
std::string check_page_file(const std::string& text) {
  // Texts are never taken as HTML. Nothing is inline or from elsewhere: the policy wouldn't allow
  // it.
  for (const char* banned : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "style=", "https://", "onclick=\""}) {
    if (text.find(banned) != std::string::npos) {
      return banned;
    }
  }
  return std::count(text.begin(), text.end(), '\n') > 500 ? "more than 500 lines" : "";
}

TEST(PageFiles, AreShortAndSafe) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(PAGEZIP_SOURCE_DIR "/api/http/page")) {
    if (entry.is_directory()) continue;  // uplot/ isn't ours
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(check_page_file(text), "") << entry.path();
    ++files;
  }
  EXPECT_GE(files, 9);
}

TEST(PageFiles, TheCheckCanFail) {
  EXPECT_EQ(check_page_file("a.textContent = b;\n"), "");
  EXPECT_EQ(check_page_file("a.innerHTML = b;\n"), "innerHTML");
  EXPECT_EQ(check_page_file("<p style=\"color: red\">"), "style=");
  EXPECT_EQ(check_page_file(std::string(501, '\n')), "more than 500 lines");
}

}  // namespace
}  // namespace pagezip
