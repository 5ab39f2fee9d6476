#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  return Report(mergepipe::Report{MethodsJson(), MethodsText(), {}}, arguments);
}

}  // namespace

const Command& MethodsCommand() {
  static const Command command = {
      .name = "methods",
      .summary = "list the merge methods and their parameters",
      .positionals = {},
      .flags =
          {{.name = "--json", .value = "", .help = "print one JSON object on stdout", .environment = ""}},
      .examples = {"mergepipe methods"},
      .exit_statuses = "  0  done",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
