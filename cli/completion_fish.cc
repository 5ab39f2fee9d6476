#include "completion.h"

namespace mergepipe::cli {
namespace {

constexpr const char* kLine = "complete -c mergepipe ";

// Within fish's single quotes only these two are special.
std::string FishQuoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string Within(const Command& command) {
  return "-n '__fish_seen_subcommand_from " + command.name + "' ";
}

std::string FlagLine(const Command& command, const FlagSpec& flag) {
  std::string text = kLine + Within(command);
  for (const std::string& spelling : SpellingsOf(flag))
    text +=
        spelling.rfind("--", 0) == 0 ? "-l " + spelling.substr(2) + " " : "-s " + spelling.substr(1) + " ";
  if (!flag.value.empty()) {
    text += IsPath(flag.value) && flag.choices.empty() ? "-r -F " : "-x ";
    if (!flag.choices.empty()) text += "-a " + FishQuoted(JoinWords(flag.choices)) + " ";
  }
  return text + "-d " + FishQuoted(ShortHelp(flag.help)) + "\n";
}

// Fish does not count positionals: their words are offered wherever one may stand.
std::string PositionalLine(const Command& command) {
  std::string text;
  bool paths = false;
  for (const PositionalSpec& positional : command.positionals) {
    if (!positional.choices.empty())
      text += kLine + Within(command) + "-a " + FishQuoted(JoinWords(positional.choices)) + "\n";
    paths = paths || (positional.choices.empty() && IsPath(positional.name));
  }
  return paths ? text + kLine + Within(command) + "-F\n" : text;
}

}  // namespace

std::string FishCompletion() {
  std::string text =
      "# fish completion for mergepipe, made by `mergepipe completion fish`\ncomplete -c mergepipe -f\n"
      "complete -c mergepipe -n __fish_use_subcommand -l version -d 'print the version'\n"
      "complete -c mergepipe -l help -d 'print the help'\n";
  for (const Command* command : AllCommands())
    text += std::string(kLine) + "-n __fish_use_subcommand -a " + command->name + " -d " +
            FishQuoted(ShortHelp(command->summary)) + "\n";
  for (const Command* command : AllCommands()) {
    text += PositionalLine(*command);
    for (const FlagSpec& flag : command->flags)
      text += FlagLine(*command, flag);
  }
  return text;
}

}  // namespace mergepipe::cli
