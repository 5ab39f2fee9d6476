#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  auto report = Inspect(arguments.Get("MODEL"));
  return report ? Report(*report, arguments) : Report(report.error(), arguments.Has("--json"));
}

}  // namespace

const Command& InspectCommand() {
  static const Command command = {
      .name = "inspect",
      .summary = "list a checkpoint's tensors and check the health of its files, from headers alone",
      .positionals = {{"MODEL", "folder or safetensors file", true}},
      .flags = {{.name = "--json",
                 .value = "",
                 .help = "print one JSON object on stdout, on failure too",
                 .environment = ""},
                {.name = "--quiet",
                 .value = "",
                 .help = "print nothing but errors and warnings",
                 .environment = ""}},
      .examples = {"mergepipe inspect merged", "mergepipe inspect model.safetensors --json"},
      .exit_statuses =
          "  0  the checkpoint is sound\n  1  failed while running\n  2  the checkpoint is damaged or "
          "missing",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
