#include <fmt/format.h>

#include "api/cli/files.h"
#include "api/cli/report.h"
#include "api/cli/terminal.h"
#include "api/cli/verbs.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

/// In quotes, on one line; a token can be a part of a character.
std::string piece_text(std::string_view piece) {
  std::string text = "\"";
  while (!piece.empty()) {
    const Utf8Char next = decode_utf8(piece);
    const std::string_view bytes = piece.substr(0, next.bytes);
    const bool is_printable =
        next.status == Utf8Status::kValid && next.code_point >= 0x20 && next.code_point != 0x7f;
    if (bytes == "\n") {
      text += "\\n";
    } else if (bytes == "\"" || bytes == "\\") {
      text += '\\';
      text += bytes;
    } else if (is_printable) {
      text += bytes;
    } else {
      for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    }
    piece.remove_prefix(next.bytes);
  }
  return text + '"';
}

}  // namespace

void run_tokenize(const Options& options) {
  const std::string text = options.text == "-" ? read_document("-") : options.text;
  check_text(text, "the text");
  const Tokenizer tokenizer(GgufFile::open(options.runtime.model));
  const std::vector<TokenId> ids = tokenizer.encode(text, options.parse_special);
  Output output;
  if (options.json) {
    Json json;
    json["token_ids"] = ids;
    output.write(json_line(json));
    return;
  }
  std::string lines;
  for (const TokenId id : ids) {
    lines += fmt::format("{:>8}  {}\n", id, piece_text(tokenizer.piece(id)));
  }
  output.write(lines);
}

}  // namespace pagezip
