#pragma once

#include <string>
#include <vector>

#include "command.h"

namespace mergepipe::cli {

/// A shell, and the script that teaches it our command line. One file each: completion_NAME.cc.
struct Shell {
  std::string name;
  std::string (*script)();
};
const std::vector<Shell>& Shells();

std::string BashCompletion();
std::string ZshCompletion();
std::string FishCompletion();

/// All commands and all flags of one, in every spelling.
std::vector<std::string> CommandNames();
std::vector<std::string> FlagWords(const Command& command);

/// True where a value of this name is a file or a folder.
bool IsPath(const std::string& value_name);

/// The first sentence or clause of a help text, for lists.
std::string ShortHelp(const std::string& help);

/// `text` within single quotes as POSIX shells and zsh read them.
std::string Quoted(const std::string& text);

std::string JoinWords(const std::vector<std::string>& words);

}  // namespace mergepipe::cli
