#include "completion.h"

#include <algorithm>

namespace mergepipe::cli {

const std::vector<Shell>& Shells() {
  static const std::vector<Shell> shells = {
      {"bash", BashCompletion}, {"zsh", ZshCompletion}, {"fish", FishCompletion}};
  return shells;
}

std::vector<std::string> CommandNames() {
  std::vector<std::string> names;
  for (const Command* command : AllCommands())
    names.push_back(command->name);
  return names;
}

std::vector<std::string> FlagWords(const Command& command) {
  std::vector<std::string> words;
  for (const FlagSpec& flag : command.flags) {
    for (const std::string& spelling : SpellingsOf(flag))
      words.push_back(spelling);
  }
  words.emplace_back("--help");
  return words;
}

bool IsPath(const std::string& value_name) {
  static const std::vector<std::string> paths = {"FILE", "DIR", "MODEL", "MODEL[:WEIGHT]", "RECIPE",
                                                 "OUT",  "NEW", "PLAN",  "BASE",           "EXPERT",
                                                 "A",    "B",   "C"};
  return std::find(paths.begin(), paths.end(), value_name) != paths.end();
}

std::string ShortHelp(const std::string& help) {
  return help.substr(0, help.find_first_of(";:("));
}

std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text)
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string JoinWords(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace mergepipe::cli
