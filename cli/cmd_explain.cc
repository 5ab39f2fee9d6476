#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  auto report = Explain(arguments.Get("PLAN"), arguments.Get("--why"));
  return report ? Report(*report, arguments) : Report(report.error(), arguments.Has("--json"));
}

}  // namespace

const Command& ExplainCommand() {
  static const Command command = {
      .name = "explain",
      .summary = "tell what a saved plan or an output reads and leaves out, and why",
      .positionals = {{"PLAN", "file that mergepipe plan -o wrote, or an output folder", true}},
      .flags = {{.name = "--why",
                 .value = "TENSOR",
                 .help = "why the blocks of this output tensor are read or left out",
                 .environment = ""},
                {.name = "--json",
                 .value = "",
                 .help = "print one JSON object on stdout, on failure too",
                 .environment = ""},
                {.name = "--quiet",
                 .value = "",
                 .help = "print nothing but errors and warnings",
                 .environment = ""}},
      .examples = {"mergepipe explain plan.json", "mergepipe explain merged --json",
                   "mergepipe explain plan.json --why model.layers.3.mlp.up_proj.weight"},
      .exit_statuses =
          "  0  done\n  1  failed while running\n  2  there is no such plan, output or tensor, or the file "
          "is "
          "damaged",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
