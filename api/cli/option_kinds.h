// The kinds of options that the command line has, on top of CLI11.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

namespace pagezip {

/// Help that fits a terminal of 80 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string wrapped;
    size_t column = 0;
    for (const std::string& word : CLI::detail::split(option->get_description(), ' ')) {
      if (column > 0 && column + 1 + word.size() > kWidth - kColumn) {
        wrapped += '\n';
        column = 0;
      } else if (column > 0) {
        wrapped += ' ';
        ++column;
      }
      wrapped += word;
      column += word.size();
    }
    return wrapped;
  }

 private:
  static constexpr size_t kWidth = 79;
  static constexpr size_t kColumn = 26;
};

template <typename T>
struct Range {
  T min;
  T max;
  bool open_at_min = false;  // min itself is out
  const char* unit = "";

  // Written so that NaN is in no range.
  bool holds(T value) const { return (open_at_min ? value > min : value >= min) && value <= max; }
  std::string text() const {
    return fmt::format("{}{}, {}]{}{}", open_at_min ? '(' : '[', min, max, *unit ? " " : "", unit);
  }
};

/// An option that takes one number, strictly parsed: no octal, no trailing text, no NaN.
template <typename T>
CLI::Option* add_number(CLI::App& app, const std::string& name, T& value, const Range<T>& range,
                        const std::string& description, const std::string& default_text = "") {
  const auto parse = [&value, range, name](const std::string& text) {
    T parsed{};
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (code != std::errc() || end != text.data() + text.size() || !range.holds(parsed)) {
      throw CLI::ValidationError(name,
                                 fmt::format("\"{}\" is not a number in {}", text, range.text()));
    }
    value = parsed;
  };
  return app
      .add_option_function<std::string>(
          name, parse,
          fmt::format("{}; {}, default {}", description, range.text(),
                      default_text.empty() ? fmt::format("{}", value) : default_text))
      ->option_text("NUM");
}

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& value, const Choices<T>& choices,
                        const std::string& description) {
  std::string names;
  std::string chosen;
  for (const auto& [text, choice] : choices) {
    names += (names.empty() ? "" : "|") + text;
    chosen = choice == value ? text : chosen;
  }
  const auto parse = [&value, choices, name, names](const std::string& given) {
    for (const auto& [text, choice] : choices) {
      if (text == given) {
        value = choice;
        return;
      }
    }
    throw CLI::ValidationError(name, fmt::format("\"{}\" is none of {}", given, names));
  };
  return app
      .add_option_function<std::string>(
          name, parse, fmt::format("{}; {}, default {}", description, names, chosen))
      ->option_text("NAME");
}

inline CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& value,
                             const std::string& kind, const std::string& description) {
  return app.add_option(name, value, description)->option_text(kind);
}

}  // namespace pagezip
