#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "mergepipe/result.h"

namespace mergepipe {

/// JSON with sorted keys; its dump is canonical. This header is the only one that includes nlohmann.
using Json = nlohmann::json;
/// JSON that keeps the order of keys, for files that people read.
using OrderedJson = nlohmann::ordered_json;

/// Parses one JSON document from a file that nobody vouches for. Fails with kInvalidInput, naming `where`, on
/// syntax, a byte order mark, duplicate keys, or nesting deeper than 64.
Result<Json> ParseJson(std::string_view text, const std::string& where);
/// The same, keeping the order of keys.
Result<OrderedJson> ParseOrderedJson(std::string_view text, const std::string& where);

/// The text of a JSON value, on one line where `indent` is −1. Bytes that are no UTF-8 (a path may hold any)
/// are replaced by U+FFFD.
std::string JsonText(const Json& json, int indent = -1);

}  // namespace mergepipe
