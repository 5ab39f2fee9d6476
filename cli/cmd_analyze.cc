#include <cstdlib>
#include <sstream>

#include "terminal.h"

namespace mergepipe::cli {
namespace {

// "0.2,0.5" as numbers.
Result<std::vector<double>> DensitiesOf(const std::vector<std::string>& texts) {
  std::vector<double> densities;
  for (const std::string& text : texts) {
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
      char* end = nullptr;
      densities.push_back(std::strtod(word.c_str(), &end));
      if (word.empty() || *end != '\0' || !(densities.back() > 0 && densities.back() <= 1))
        return Fail(Code::kUsage, "--density: '" + word + "' is no number above 0 and up to 1");
    }
  }
  return densities;
}

Result<AnalyzeRequest> RequestOf(const Arguments& arguments) {
  auto options = RunOptionsOf(arguments);
  if (!options) return Fail(options.error());
  auto densities = DensitiesOf(arguments.All("--density"));
  if (!densities) return Fail(densities.error());
  AnalyzeRequest request{.base = arguments.Get("BASE"),
                         .experts = arguments.All("EXPERT"),
                         .densities = *densities,
                         .catalog = arguments.Get("--catalog"),
                         .force = arguments.Has("--force"),
                         .run = *options};
  if (!arguments.Has("--block-size")) return request;
  auto bytes = ParseByteCount(arguments.Get("--block-size"));
  if (!bytes) return Fail(Code::kUsage, "--block-size (or MERGEPIPE_BLOCK_SIZE): " + bytes.error().message);
  request.block_bytes = *bytes;
  return request;
}

int Run(const Arguments& arguments) {
  const bool json = arguments.Has("--json");
  auto request = RequestOf(arguments);
  if (!request) return Report(request.error(), json);
  auto report = Analyze(*request);
  return report ? Report(*report, arguments) : Report(report.error(), json);
}

std::vector<FlagSpec> Flags() {
  std::vector<FlagSpec> flags = {
      {.name = "--density",
       .value = "D,...",
       .help = "also find the exact threshold that the largest share D of each tensor's delta passes, for "
               "methods "
               "that trim (density of ties)",
       .environment = "",
       .repeated = true},
      {.name = "--block-size",
       .value = "SIZE",
       .help = "size of the blocks that are measured: a power of two from 16KiB to 64MiB; default 1MiB",
       .environment = "MERGEPIPE_BLOCK_SIZE"},
      CatalogFlag(),
      {.name = "--force", .value = "", .help = "read again what is known already", .environment = ""}};
  for (FlagSpec& flag : CommonFlags())
    flags.push_back(std::move(flag));
  return flags;
}

}  // namespace

const Command& AnalyzeCommand() {
  static const Command command = {
      .name = "analyze",
      .summary = "measure experts against their base, block by block, and keep the statistics in the catalog",
      .positionals = {{"BASE", "the checkpoint that the experts were fine-tuned from", true},
                      {"EXPERT", "checkpoints to measure", true, true}},
      .flags = Flags(),
      .examples = {"mergepipe analyze base experts/math experts/code",
                   "mergepipe analyze base experts/* --density 0.2,0.5"},
      .exit_statuses =
          "  0  everything is in the catalog\n  1  failed while running\n  2  the request, an input or the "
          "catalog is "
          "wrong\n  75  failed midway for a reason that may pass; the same command goes on\n  130, 143  "
          "interrupted; the "
          "same command goes on",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
