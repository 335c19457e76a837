// Files that the user names: documents in, results out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pagezip {

/// The text of a file, or of standard input for "-". Throws Error(kUsage) for what can't be read,
/// is empty, too large, binary, or not UTF-8.
std::string read_document(const std::string& path);

/// A small text file that is not a document. Throws Error(kUsage).
std::string read_text(const std::string& path, std::string_view what);

/// Throws Error(kUsage) for text that is not UTF-8 or has a NUL; `what` names it in the message.
void check_text(std::string_view text, std::string_view what);

/// Throws Error(kOutput) if it is plain that the file can't be written, before any work.
/// `to_replace`: the file will be replaced, so it may not be a device.
void check_writable(const std::string& path, bool to_replace);

/// A float32 array in NumPy's format 1.0. Throws Error(kOutput), and leaves no partial file.
void write_npy(const std::string& path, std::span<const int64_t> shape,
               std::span<const float> values);

}  // namespace pagezip
