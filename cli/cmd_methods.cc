#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  auto report = DescribeMethods(arguments.Get("NAME"));
  return report ? Report(*report, arguments) : Report(report.error(), arguments.Has("--json"));
}

}  // namespace

const Command& MethodsCommand() {
  static const Command command = {
      .name = "methods",
      .summary = "list the merge methods and their parameters, or tell all about one",
      .positionals = {{.name = "NAME",
                       .help = "one method: its formula, paper, and parameters with defaults and ranges",
                       .required = false,
                       .choices = MethodNames()}},
      .flags = {{.name = "--json",
                 .value = "",
                 .help = "print one JSON object on stdout, on failure too",
                 .environment = ""}},
      .examples = {"mergepipe methods", "mergepipe methods ties"},
      .exit_statuses = "  0  done\n  2  there is no such method",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
