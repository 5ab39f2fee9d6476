#include <algorithm>
#include <sstream>

#include "merge_flags.h"
#include "terminal.h"

namespace mergepipe::cli {
namespace {

constexpr const char* kBudgets = "1%,2%,5%,10%,25%,50%,100%";

// Flags of merge that say what is merged and how blocks are chosen.
std::vector<FlagSpec> Flags() {
  const std::vector<std::string> taken = {"--base",
                                          "--method",
                                          "--expert",
                                          "--set",
                                          "--policy",
                                          "--block-size",
                                          "--seed",
                                          "--missing",
                                          "-i,--tensor-intersection",
                                          "-u,--tensor-union",
                                          "--catalog",
                                          "--threads",
                                          "--memory",
                                          "--json",
                                          "--quiet"};
  std::vector<FlagSpec> flags = MergeFlags();
  std::erase_if(flags, [&](const FlagSpec& flag) {
    return std::find(taken.begin(), taken.end(), flag.name) == taken.end();
  });
  flags.insert(flags.begin(), {.name = "--budgets",
                               .value = "LIST",
                               .help = std::string("shares or sizes, by commas; default ") + kBudgets,
                               .environment = ""});
  return flags;
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');)
    parts.push_back(part);
  return parts;
}

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  auto merge = MergeRequestOf(arguments, /*needs_output=*/false);
  if (!merge) return Report(merge.error(), json);
  if (merge->flags && arguments.Has("RECIPE"))
    return Report(Error{Code::kUsage,
                        "a recipe file and --base/--method/--expert exclude each other: '" +
                            arguments.Get("RECIPE") + "' was given beside the flags",
                        {}},
                  json);
  SweepRequest request{.merge = std::move(*merge),
                       .budgets = Split(arguments.Has("--budgets") ? arguments.Get("--budgets") : kBudgets)};
  auto report = Sweep(request);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

}  // namespace

const Command& SweepCommand() {
  static const Command command = {
      .name = "sweep",
      .summary =
          "measure what error each of several budgets causes, and random blocks beside it; reads all "
          "experts, writes nothing",
      .positionals = {{"RECIPE", "mergekit YAML file; none beside --base, --method and --expert", false}},
      .flags = Flags(),
      .examples = {"mergepipe sweep ties.yml", "mergepipe sweep ties.yml --budgets 2%,10%,8GiB --json",
                   "mergepipe sweep --base base --method task_arithmetic --expert math:0.5 --policy norm"},
      .exit_statuses =
          "  0  measured\n  1  failed while running\n  2  the request or an input is wrong\n  130, 143  "
          "interrupted\n\nA sweep's own reads are not bounded by a budget: it reads what the full merge "
          "reads.",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
