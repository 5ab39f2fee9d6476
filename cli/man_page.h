#pragma once

#include <string>

namespace mergepipe::cli {

/// The manual, mergepipe(1), in man's macros: all commands and flags, from their records.
std::string ManPage();

}  // namespace mergepipe::cli
