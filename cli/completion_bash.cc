#include "completion.h"

namespace mergepipe::cli {
namespace {

// Finds the command and the number of the positional that is typed, leaving out flags and their values. Bash
// takes the "=" of "--flag=value" for a word of its own.
constexpr const char* kHead = R"(# bash completion for mergepipe, made by `mergepipe completion bash`
_mergepipe() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local command='' position=0 i word flags valued='' values positional
  if [[ $cur == = ]]; then
    cur=''
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -* ]]; then
      [[ " $valued " == *" $word "* ]] && { [[ ${COMP_WORDS[i+1]} == = ]] && ((++i)); ((++i)); }
    elif [[ -z $command ]]; then
      command=$word
      _mergepipe_valued
    else
      ((++position))
    fi
  done
  COMPREPLY=()
  if [[ -z $command ]]; then
    COMPREPLY=($(compgen -W "$_mergepipe_commands --help --version" -- "$cur"))
    return
  fi
  values='-' positional='' flags=''
  _mergepipe_words
  if [[ $values == '<path>' ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
  elif [[ $values != '-' ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  elif [[ $positional == '<path>' ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$positional" -- "$cur"))
  fi
}
)";

std::string WordsOf(const std::string& value_name, const std::vector<std::string>& choices) {
  if (!choices.empty()) return JoinWords(choices);
  return IsPath(value_name) ? "<path>" : "";
}

std::string ValuedFlags(const Command& command) {
  std::vector<std::string> words;
  for (const FlagSpec& flag : command.flags) {
    if (flag.value.empty()) continue;
    for (const std::string& spelling : SpellingsOf(flag))
      words.push_back(spelling);
  }
  return JoinWords(words);
}

// "      --missing) values='error base' ;;" for each flag that takes a value.
std::string ValueCases(const Command& command) {
  std::string text;
  for (const FlagSpec& flag : command.flags) {
    if (flag.value.empty()) continue;
    std::string names;
    for (const std::string& spelling : SpellingsOf(flag))
      names += (names.empty() ? "" : "|") + spelling;
    text += "        " + names + ") values=" + Quoted(WordsOf(flag.value, flag.choices)) + " ;;\n";
  }
  return text;
}

std::string PositionalCases(const Command& command) {
  std::string text;
  for (size_t i = 0; i < command.positionals.size(); ++i) {
    const PositionalSpec& positional = command.positionals[i];
    text += "        " + (positional.repeated ? "*" : std::to_string(i)) +
            ") positional=" + Quoted(WordsOf(positional.name, positional.choices)) + " ;;\n";
  }
  return text;
}

std::string Case(const std::string& subject, const std::string& cases) {
  return cases.empty() ? "" : "      case $" + subject + " in\n" + cases + "      esac\n";
}

}  // namespace

std::string BashCompletion() {
  std::string text = std::string(kHead) + "_mergepipe_commands=" + Quoted(JoinWords(CommandNames())) +
                     "\n_mergepipe_valued() {\n  case $command in\n";
  for (const Command* command : AllCommands())
    text += "    " + command->name + ") valued=" + Quoted(ValuedFlags(*command)) + " ;;\n";
  text += "  esac\n}\n_mergepipe_words() {\n  case $command in\n";
  for (const Command* command : AllCommands())
    text += "    " + command->name + ")\n      flags=" + Quoted(JoinWords(FlagWords(*command))) + "\n" +
            Case("prev", ValueCases(*command)) + Case("position", PositionalCases(*command)) + "      ;;\n";
  return text + "  esac\n}\ncomplete -F _mergepipe mergepipe\n";
}

}  // namespace mergepipe::cli
