#include "completion.h"

namespace mergepipe::cli {
namespace {

// Text within a specification of _arguments: brackets and colons end parts of it.
std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// ":NAME:(a b)", ":NAME:_files" or ":NAME: ".
std::string ValuePart(const std::string& name, const std::vector<std::string>& choices) {
  std::string action = IsPath(name) ? "_files" : " ";
  if (!choices.empty()) action = "(" + JoinWords(choices) + ")";
  return ":" + Escaped(name) + ":" + action;
}

std::string FlagLines(const FlagSpec& flag) {
  std::string text;
  for (const std::string& spelling : SpellingsOf(flag)) {
    // "=" after the name: the value may follow it, or stand in the next word.
    std::string spec = (flag.repeated ? "*" : "") + spelling;
    if (!flag.value.empty() && spelling.rfind("--", 0) == 0) spec += "=";
    spec += "[" + Escaped(ShortHelp(flag.help)) + "]";
    if (!flag.value.empty()) spec += ValuePart(flag.value, flag.choices);
    text += "        " + Quoted(spec) + " \\\n";
  }
  return text;
}

std::string PositionalLines(const Command& command) {
  std::string text;
  for (const PositionalSpec& positional : command.positionals) {
    const std::string lead = positional.repeated ? "*" : positional.required ? "" : ":";
    text += "        " + Quoted(lead + ValuePart(positional.name, positional.choices)) + " \\\n";
  }
  return text;
}

std::string CommandCase(const Command& command) {
  std::string text = "    " + command.name + ")\n      _arguments \\\n";
  for (const FlagSpec& flag : command.flags)
    text += FlagLines(flag);
  return text + PositionalLines(command) + "        '--help[print this help]'\n      ;;\n";
}

}  // namespace

std::string ZshCompletion() {
  std::string text =
      "#compdef mergepipe\n# zsh completion for mergepipe, made by `mergepipe completion zsh`\n"
      "_mergepipe() {\n  local -a commands\n  commands=(\n";
  for (const Command* command : AllCommands())
    text += "    " + Quoted(command->name + ":" + Escaped(ShortHelp(command->summary))) + "\n";
  text +=
      "  )\n  if (( CURRENT == 2 )); then\n    _describe -t commands 'mergepipe command' commands\n    "
      "return\n"
      "  fi\n  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n";
  for (const Command* command : AllCommands())
    text += CommandCase(*command);
  return text +
         "  esac\n}\nif [[ $funcstack[1] == _mergepipe ]]; then\n  _mergepipe \"$@\"\nelse\n"
         "  compdef _mergepipe mergepipe\nfi\n";
}

}  // namespace mergepipe::cli
