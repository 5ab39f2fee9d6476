#include <cstdio>

#include "completion.h"
#include "terminal.h"

namespace mergepipe::cli {
namespace {

std::vector<std::string> ShellNames() {
  std::vector<std::string> names;
  for (const Shell& shell : Shells())
    names.emplace_back(shell.name);
  return names;
}

int Run(const Arguments& arguments) {
  const std::string name = arguments.Get("SHELL");
  for (const Shell& shell : Shells()) {
    if (shell.name != name) continue;
    std::fputs(shell.script().c_str(), stdout);
    return 0;
  }
  return Report(Error{Code::kUsage, "completion: '" + name + "' is none of bash, zsh and fish", {}},
                /*json=*/false);
}

}  // namespace

const Command& CompletionCommand() {
  static const Command command = {
      .name = "completion",
      .summary = "print a script by which a shell completes mergepipe's commands, flags and their values",
      .positionals = {{.name = "SHELL", .help = "bash, zsh or fish", .choices = ShellNames()}},
      .flags = {},
      .examples = {"source <(mergepipe completion bash)", "mergepipe completion zsh > ~/.zfunc/_mergepipe",
                   "mergepipe completion fish > ~/.config/fish/completions/mergepipe.fish"},
      .exit_statuses = "  0  done\n  2  there is none for this shell",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
