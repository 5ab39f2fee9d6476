#include "terminal.h"

namespace mergepipe::cli {
namespace {

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  auto options = RunOptionsOf(arguments);
  if (!options) return Report(options.error(), json);
  auto outcome = Verify(arguments.Get("OUT"), *options);
  if (!outcome) return Report(outcome.error(), json);
  outcome->report.warnings.clear();  // the text has them as notes
  Report(outcome->report, arguments);
  return outcome->ok ? 0 : ExitStatus(Code::kDifference);
}

}  // namespace

const Command& VerifyCommand() {
  static const Command command = {
      .name = "verify",
      .summary = "re-read an output and compare every byte with its manifest",
      .positionals = {{"OUT", "folder that mergepipe made", true}},
      .flags = CommonFlags(),
      .examples = {"mergepipe verify merged", "mergepipe verify merged --json"},
      .exit_statuses =
          "  0  everything is what the manifest says\n  1  failed while running\n  2  there is no manifest\n "
          " 3  something differs\n  130, 143  interrupted",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
