#include "merge_flags.h"
#include "terminal.h"

namespace mergepipe::cli {
namespace {

constexpr const char* kSave = "-o,--output";
constexpr const char* kExplain = "--explain-parameters";

std::vector<FlagSpec> Flags() {
  std::vector<FlagSpec> flags = MergeFlags();
  flags.push_back({.name = kSave,
                   .value = "FILE",
                   .help = "save the plan, for mergepipe run and mergepipe explain",
                   .environment = ""});
  flags.push_back({.name = kExplain, .help = "also tell what every parameter is for every tensor"});
  return flags;
}

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  auto request = MergeRequestOf(arguments, /*needs_output=*/false);
  if (!request) return Report(request.error(), json);
  request->plan_output = arguments.Get(kSave);
  request->explain_parameters = arguments.Has(kExplain);
  auto report = PlanMerge(*request);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

}  // namespace

const Command& PlanCommand() {
  static const Command command = {
      .name = "plan",
      .summary = "tell what a merge would read, write and need, and what error a budget causes",
      .positionals = {{"RECIPE", "mergekit YAML file; beside --base, --method and --expert there is none",
                       false},
                      {"OUT", "folder to check as an output", false}},
      .flags = Flags(),
      .examples = {"mergepipe plan ties.yml", "mergepipe plan ties.yml --budget 10% -o plan.json",
                   "mergepipe plan gradients.yml --explain-parameters",
                   "mergepipe plan ties.yml merged --memory 256MiB --json"},
      .exit_statuses =
          "  0  done\n  1  failed while running\n  2  the request or an input is wrong\n  75  the catalog is "
          "locked; try again\n  130, 143  interrupted",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
