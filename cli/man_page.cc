#include "man_page.h"

#include <map>

#include "command.h"

namespace mergepipe::cli {
namespace {

// Backslashes and hyphens have a meaning for roff, and so has a line that begins with a dot or a quote.
std::string Escaped(const std::string& text) {
  std::string escaped = text.rfind('.', 0) == 0 || text.rfind('\'', 0) == 0 ? "\\&" : "";
  for (const char c : text) {
    if (c == '\\')
      escaped += "\\e";
    else if (c == '-')
      escaped += "\\-";
    else
      escaped += c;
    if (c == '\n') escaped += "\\&";
  }
  return escaped;
}

// A term and what it means.
std::string Item(const std::string& term, const std::string& meaning) {
  return ".TP\n" + term + "\n" + Escaped(meaning) + "\n";
}

std::string Bold(const std::string& text) {
  return "\\fB" + Escaped(text) + "\\fR";
}

std::string Italic(const std::string& text) {
  return "\\fI" + Escaped(text) + "\\fR";
}

std::string SynopsisOf(const Command& command) {
  std::string text = Bold("mergepipe " + command.name);
  for (const PositionalSpec& positional : command.positionals) {
    const std::string name = Italic(positional.name) + (positional.repeated ? " ..." : "");
    text += " " + (positional.required ? name : "[" + name + "]");
  }
  return text + (command.flags.empty() ? "" : " [" + Italic("flags") + "]");
}

std::string FlagTerm(const FlagSpec& flag) {
  std::string term;
  for (const std::string& spelling : SpellingsOf(flag))
    term += (term.empty() ? "" : ", ") + Bold(spelling);
  return flag.value.empty() ? term : term + " " + Italic(flag.value);
}

std::string Verbatim(const std::string& text) {
  return ".nf\n" + Escaped(text) + "\n.fi\n";
}

std::string CommandSection(const Command& command) {
  std::string text =
      ".SS " + command.name + "\n" + SynopsisOf(command) + "\n.PP\n" + Escaped(command.summary) + ".\n";
  for (const PositionalSpec& positional : command.positionals)
    text += Item(Italic(positional.name), positional.help);
  std::string group;
  for (const FlagSpec& flag : command.flags) {
    if (flag.group != group) text += ".PP\n" + Escaped(flag.group) + ":\n";
    group = flag.group;
    text += Item(FlagTerm(flag), flag.help + (flag.repeated ? "; may be repeated" : ""));
  }
  text += ".PP\nExamples:\n";
  for (const std::string& example : command.examples)
    text += Verbatim("  " + example);
  return text + ".PP\nExit status:\n" + Verbatim(command.exit_statuses);
}

std::string EnvironmentSection() {
  std::map<std::string, std::string> flags;
  for (const Command* command : AllCommands()) {
    for (const FlagSpec& flag : command->flags) {
      if (!flag.environment.empty()) flags[flag.environment] = flag.name;
    }
  }
  std::string text = ".SH ENVIRONMENT\nWhat a flag says comes first.\n";
  for (const auto& [variable, flag] : flags)
    text += Item(Bold(variable), "value of " + flag + " where the flag is not given");
  return text + Item(Bold("MERGEPIPE_TARGET"),
                     "kernels to use instead of the fastest that run on this processor; mergepipe "
                     "--version lists them. Results do not depend on it");
}

}  // namespace

std::string ManPage() {
  std::string text = std::string(".TH MERGEPIPE 1 \"\" \"mergepipe ") + Version() +
                     "\" \"mergepipe\"\n.SH NAME\nmergepipe \\- merge language\\-model checkpoints under a "
                     "read budget\n.SH SYNOPSIS\n";
  for (const Command* command : AllCommands())
    text += SynopsisOf(*command) + "\n.br\n";
  text += Bold("mergepipe --version") + "\n.SH DESCRIPTION\n" + Bold("mergepipe") + " " +
          Escaped(kProgramSummary) + "\n.SH COMMANDS\n";
  for (const Command* command : AllCommands())
    text += CommandSection(*command);
  text += EnvironmentSection() + ".SH EXIT STATUS\n";
  for (const ExitStatusSpec& status : AllStatuses())
    text += Item(Bold(status.status), status.meaning);
  return text;
}

}  // namespace mergepipe::cli
