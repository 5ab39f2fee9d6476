#include "merge_flags.h"
#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  auto request = MergeRequestOf(arguments, /*needs_output=*/false);
  if (!request) return Report(request.error(), json);
  auto report = PlanMerge(*request);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

}  // namespace

const Command& PlanCommand() {
  static const Command command = {
      .name = "plan",
      .summary = "tell what a merge would read, write and need, from headers alone",
      .positionals = {{"RECIPE", "mergekit YAML file; beside --base, --method and --expert give OUT alone",
                       false},
                      {"OUT", "folder to check as an output", false}},
      .flags = MergeFlags(),
      .examples = {"mergepipe plan ties.yml", "mergepipe plan ties.yml merged --memory 256MiB --json"},
      .exit_statuses = kUsualStatuses,
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
