#include "merge_flags.h"
#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  auto request = MergeRequestOf(arguments, /*needs_output=*/true);
  if (!request) return Report(request.error(), json);
  auto report = Merge(*request);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

std::vector<FlagSpec> Flags() {
  std::vector<FlagSpec> flags = MergeFlags();
  flags.push_back({.name = "--resume",
                   .value = "",
                   .help = "continue an interrupted merge of this output",
                   .environment = ""});
  return flags;
}

}  // namespace

const Command& MergeCommand() {
  static const Command command = {
      .name = "merge",
      .summary = "merge checkpoints by a recipe and publish the result, all or nothing",
      .positionals = {{"RECIPE", "mergekit YAML file; beside --base, --method and --expert there is none",
                       false},
                      {"OUT", "folder to make", false}},
      .flags = Flags(),
      .examples = {"mergepipe merge ties.yml merged", "mergepipe merge ties.yml merged --budget 10%",
                   "mergepipe merge ties.yml merged --memory 512MiB --json",
                   "mergepipe merge --base base --method ties --expert math:0.5 --expert code:0.5 --set "
                   "density=0.3 merged"},
      .exit_statuses =
          "  0    done\n  1    failed while running\n  2    the request or an input is wrong; nothing was "
          "published\n"
          "  75   failed midway for a reason that may pass (disk full, catalog locked): try again\n  130, "
          "143  interrupted; "
          "continue with --resume",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
