#pragma once

#include <string>
#include <string_view>

namespace mergepipe {

/// Names what a file is that was taken for safetensors, with advice, from its first bytes (some 256 suffice);
/// "" when unknown.
std::string SniffForeignFormat(std::string_view first_bytes);

}  // namespace mergepipe
