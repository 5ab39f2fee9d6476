#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  MergeRequest request;
  request.output = arguments.Get("NEW");
  request.force = arguments.Has("--force");
  request.resume = arguments.Has("--resume");
  auto options = RunOptionsOf(arguments);
  if (!options) return Report(options.error(), json);
  request.run = std::move(*options);
  auto report = Replay(arguments.Get("OUT"), request);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

std::vector<FlagSpec> Flags() {
  std::vector<FlagSpec> flags = {
      {.name = "--force", .value = "", .help = "replace an existing output", .environment = ""},
      {.name = "--resume", .value = "", .help = "continue an interrupted replay", .environment = ""}};
  for (FlagSpec& flag : CommonFlags())
    flags.push_back(std::move(flag));
  return flags;
}

}  // namespace

const Command& ReplayCommand() {
  static const Command command = {
      .name = "replay",
      .summary = "make an output again from its manifest, byte for byte, or say which input changed",
      .positionals = {{"OUT", "folder that mergepipe made", true}, {"NEW", "folder to make", true}},
      .flags = Flags(),
      .examples = {"mergepipe replay merged again"},
      .exit_statuses =
          "  0  done, the same bytes\n  1  failed while running\n  2  an input changed (named), or the "
          "request is wrong; nothing was published\n  3  the manifest was changed\n  75  failed midway for "
          "a reason that may pass\n  130, "
          "143  interrupted; continue with --resume",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
