#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mergepipe/result.h"

namespace mergepipe {

/// fmt's formatting under one name; this header is the only one that includes fmt.
template <typename... Args>
std::string Format(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

/// Joins with a separator.
std::string Join(const std::vector<std::string>& parts, std::string_view separator);

/// A byte count for people: "512 B", "1.5 MiB".
std::string HumanBytes(uint64_t bytes);

/// Reads a byte count: a number with an optional unit B, KB, KiB, MB, MiB, GB, GiB, TB, TiB (KB = 1000, KiB =
/// 1024; case does not matter). Fails with kUsage.
Result<uint64_t> ParseBytes(std::string_view text);

/// Reads a whole decimal number that must fill the text. Fails with kUsage.
Result<uint64_t> ParseUnsigned(std::string_view text);

/// Reads a decimal floating-point number that must fill the text (no infinities or NaN). Fails with kUsage.
Result<double> ParseDouble(std::string_view text);

/// Returns the candidate nearest to `word` by edit distance, or "" when none is near enough to be a typing
/// mistake.
std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates);

/// " (did you mean 'X'?)" or "".
std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates);

/// A shape as errors print it: "[4096, 11008]".
std::string ShapeText(const std::vector<uint64_t>& shape);

/// True when the bytes are well-formed UTF-8.
bool IsUtf8(std::string_view text);

bool StartsWith(std::string_view text, std::string_view prefix);
bool EndsWith(std::string_view text, std::string_view suffix);

}  // namespace mergepipe
