#include <algorithm>
#include <cstdio>

#include "command.h"
#include "man_page.h"

namespace mergepipe::cli {
namespace {

bool IsCommand(const std::string& name) {
  const auto& commands = AllCommands();
  return std::any_of(commands.begin(), commands.end(), [&](const Command* c) { return c->name == name; });
}

// The help of a command is what its own --help prints.
int Run(const Arguments& arguments) {
  if (arguments.Has("--man")) {
    std::fputs(ManPage().c_str(), stdout);
    return 0;
  }
  std::vector<std::string> words = {"mergepipe"};
  if (arguments.Has("COMMAND")) words.push_back(arguments.Get("COMMAND"));
  if (words.size() == 1 || IsCommand(words[1])) words.push_back("--help");  // else it says that there is none
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  return RunCommandLine(static_cast<int>(argv.size()), argv.data());
}

}  // namespace

const Command& HelpCommand() {
  static const Command command = {
      .name = "help",
      .summary = "print this help, that of one command, or the man page",
      .positionals = {{.name = "COMMAND", .help = "whose help to print", .required = false}},
      .flags = {{.name = "--man",
                 .value = "",
                 .help = "print the man page of all commands, for man -l",
                 .environment = ""}},
      .examples = {"mergepipe help merge", "mergepipe help --man > mergepipe.1"},
      .exit_statuses = "  0  done\n  2  there is no such command",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
