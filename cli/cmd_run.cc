#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  MergeRequest request;
  request.output = arguments.Get("OUT");
  request.force = arguments.Has("--force");
  request.resume = arguments.Has("--resume");
  auto options = RunOptionsOf(arguments);
  if (!options) return Report(options.error(), json);
  request.run = std::move(*options);
  auto report = RunPlan(arguments.Get("PLAN"), request);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

std::vector<FlagSpec> Flags() {
  std::vector<FlagSpec> flags = {
      {.name = "--force", .value = "", .help = "replace an existing output", .environment = ""},
      {.name = "--resume",
       .value = "",
       .help = "continue an interrupted run of this plan",
       .environment = ""}};
  for (FlagSpec& flag : CommonFlags()) {
    if (flag.name == "--memory") flag.help = "not used: the limit is part of the plan";
    flags.push_back(std::move(flag));
  }
  return flags;
}

}  // namespace

const Command& RunPlanCommand() {
  static const Command command = {
      .name = "run",
      .summary = "execute a saved plan, or say which input changed since it was made",
      .positionals = {{"PLAN", "file that mergepipe plan -o wrote", true}, {"OUT", "folder to make", true}},
      .flags = Flags(),
      .examples = {"mergepipe plan ties.yml --budget 10% -o plan.json", "mergepipe run plan.json merged"},
      .exit_statuses =
          "  0  done\n  1  failed while running\n  2  an input changed (named), or the request is wrong; "
          "nothing was "
          "published\n  75  failed midway for a reason that may pass\n  130, 143  interrupted; continue "
          "with "
          "--resume",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
