#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  auto options = RunOptionsOf(arguments);
  if (!options) return Report(options.error(), json);
  auto report = Diff(arguments.Get("A"), arguments.Get("B"), arguments.Get("--base"), *options);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

std::vector<FlagSpec> Flags() {
  std::vector<FlagSpec> flags = {{.name = "--base",
                                  .value = "C",
                                  .help = "also relate the difference to the update A - C",
                                  .environment = ""}};
  for (FlagSpec& flag : CommonFlags())
    flags.push_back(std::move(flag));
  return flags;
}

}  // namespace

const Command& DiffCommand() {
  static const Command command = {
      .name = "diff",
      .summary = "compare two checkpoints tensor by tensor: which differ, by how much",
      .positionals = {{"A", "the reference", true}, {"B", "what is compared with it", true}},
      .flags = Flags(),
      .examples = {"mergepipe diff merged again",
                   "mergepipe diff merged merged-10-percent --base base --json"},
      .exit_statuses =
          "  0  compared, whatever was found\n  1  failed while running\n  2  the request or an input is "
          "wrong\n  130, 143  interrupted",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
