#include "merge_flags.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "mergekit_flags.h"
#include "terminal.h"

namespace mergepipe::cli {
namespace {

Result<uint64_t> SeedOf(const std::string& text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    return Fail(Code::kUsage, "--seed " + text + " is no whole number below 2^64");
  return seed;
}

constexpr const char* kIntersection = "-i,--tensor-intersection";
constexpr const char* kIntermediate = "-I,--intermediate-dir";
constexpr const char* kUnion = "-u,--tensor-union";

Result<MissingTensors> MissingOf(const Arguments& arguments) {
  if (arguments.Has("--missing") + arguments.Has(kIntersection) + arguments.Has(kUnion) > 1)
    return Fail(Code::kUsage, "give one of --missing, --tensor-intersection and --tensor-union");
  if (arguments.Has(kIntersection)) return MissingTensors::kIntersection;
  if (arguments.Has(kUnion)) return MissingTensors::kUnion;
  if (!arguments.Has("--missing")) return MissingTensors::kError;
  auto missing = ParseMissing(arguments.Get("--missing"));
  if (!missing) return Fail(Code::kUsage, "--missing: " + missing.error().message);
  return missing;
}

// RECIPE OUT, or with a recipe in flags OUT alone.
Result<void> TakePositionals(const Arguments& arguments, bool needs_output, MergeRequest& request) {
  const std::string first = arguments.Get("RECIPE");
  const std::string second = arguments.Has("OUT") ? arguments.Get("OUT") : arguments.Get("--out-path");
  request.intermediate_dir = arguments.Get(kIntermediate);
  request.redo_stages = arguments.Has("--no-lazy") && !arguments.Has("--lazy");
  if (arguments.Has("OUT") && arguments.Has("--out-path"))
    return Fail(Code::kUsage, "OUT and --out-path name the same thing; give one of them");
  if (!request.flags) {
    if (first.empty())
      return Fail(Code::kUsage,
                  "RECIPE is missing; give a mergekit YAML file, or --base, --method and --expert");
    if (second.empty() && needs_output && request.intermediate_dir.empty())
      return Fail(Code::kUsage, "OUT is missing; name the folder to make");
    request.recipe_path = first;
    request.output = second;
    return {};
  }
  if (!second.empty())
    return Fail(Code::kUsage, "a recipe file and --base/--method/--expert exclude each other: '" + first +
                                  "' was given beside the flags");
  if (first.empty() && needs_output) return Fail(Code::kUsage, "OUT is missing; name the folder to make");
  if (request.flags->method.empty()) return Fail(Code::kUsage, "--method is missing");
  if (request.flags->experts.empty())
    return Fail(Code::kUsage, "--expert is missing; give it once for each model");
  request.output = first;
  return {};
}

Result<void> TakeDeviation(const Arguments& arguments, MergeRequest& request) {
  for (const char* flag : {"--max-deviation", "--max-deviation-weights"}) {
    if (!arguments.Has(flag)) continue;
    if (request.max_deviation)
      return Fail(Code::kUsage, "give one of --max-deviation and --max-deviation-weights");
    const std::string text = arguments.Get(flag);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= 0))
      return Fail(Code::kUsage, std::string(flag) + " " + text + " is no number of at least 0, such as 0.3");
    request.max_deviation = value;
    request.deviation_of_weights = std::string(flag) == "--max-deviation-weights";
  }
  // What the environment says is a default, which a deviation that was typed replaces.
  const char* usual = std::getenv("MERGEPIPE_BUDGET");
  if (request.max_deviation && usual != nullptr && request.budget == usual) request.budget.clear();
  const char* policy = std::getenv("MERGEPIPE_POLICY");
  if (request.max_deviation && policy != nullptr && request.policy == policy) request.policy.clear();
  return {};
}

}  // namespace

std::vector<FlagSpec> MergeFlags() {
  std::vector<FlagSpec> flags = {
      {.name = "--base",
       .value = "MODEL",
       .help = "without a recipe file: the base model",
       .environment = ""},
      {.name = "--method",
       .value = "NAME",
       .help = "without a recipe file: the merge method (see mergepipe methods)",
       .environment = "",
       .choices = MethodNames()},
      {.name = "--expert",
       .value = "MODEL[:WEIGHT]",
       .help = "without a recipe file: a model to merge; give it once for each",
       .environment = "",
       .repeated = true},
      {.name = "--set",
       .value = "KEY=VALUE",
       .help = "without a recipe file: a parameter of the whole merge",
       .environment = "",
       .repeated = true},
      {.name = "--block-size",
       .value = "SIZE",
       .help = "unit of access, a power of two from 16KiB to 64MiB; default 1MiB",
       .environment = "MERGEPIPE_BLOCK_SIZE"},
      {.name = "--budget",
       .value = "SHARE|SIZE",
       .help = "read at most this much of the experts, such as 10% or 8GiB; default what the recipe says, "
               "else all",
       .environment = "MERGEPIPE_BUDGET"},
      {.name = "--max-deviation",
       .value = "X",
       .help =
           "instead of a budget: read as little as keeps the predicted error within X of the update, 0.3 for "
           "30 %; needs mergepipe analyze",
       .environment = ""},
      {.name = "--max-deviation-weights",
       .value = "X",
       .help = "the same, relative to the weights",
       .environment = ""},
      {.name = "--policy",
       .value = "NAME",
       .help = "which blocks are read first: gram (what lowers the error most; default), norm, uniform, "
               "fair, random",
       .environment = "MERGEPIPE_POLICY",
       .choices = {"gram", "norm", "uniform", "fair", "random"}},
      CatalogFlag(),
      {.name = "--seed",
       .aliases = "--random-seed",
       .value = "N",
       .help = "seed of the methods that drop at random; default 0",
       .environment = "MERGEPIPE_SEED"},
      {.name = "--missing",
       .value = "RULE",
       .help = "where a model lacks a tensor: error (stop; default), base (take the base's), intersection "
               "(leave the "
               "tensor out) or union (merge what is there)",
       .environment = "",
       .choices = {"error", "base", "intersection", "union"}},
      {.name = kIntersection, .value = "", .help = "the same as --missing intersection", .environment = ""},
      {.name = kUnion, .value = "", .help = "the same as --missing union", .environment = ""},
      {.name = kIntermediate,
       .value = "DIR",
       .help = "recipes of several stages: where the named ones go; default OUT.stages",
       .environment = ""},
      {.name = "--lazy",
       .value = "",
       .help = "recipes of several stages: use those again that are there and up to date (default)",
       .environment = ""},
      {.name = "--no-lazy",
       .value = "",
       .help = "recipes of several stages: redo all of them",
       .environment = ""},
      {.name = "--out-path", .value = "DIR", .help = "the same as OUT", .environment = ""},
      {.name = "--allow-nonfinite",
       .value = "",
       .help = "go on where values are NaN or infinite",
       .environment = ""},
      {.name = "--force", .value = "", .help = "replace an existing output", .environment = ""},
  };
  for (auto& more : {CommonFlags(), MergekitFlags()})
    flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

Result<MergeRequest> MergeRequestOf(const Arguments& arguments, bool needs_output) {
  MergeRequest request;
  if (arguments.Has("--base") || arguments.Has("--method") || arguments.Has("--expert") ||
      arguments.Has("--set")) {
    request.flags = FlagRecipe{arguments.Get("--base"), arguments.Get("--method"), arguments.All("--expert"),
                               arguments.All("--set")};
  }
  auto taken = TakePositionals(arguments, needs_output, request);
  if (!taken) return Fail(std::move(taken).error());
  if (arguments.Has("--block-size")) {
    auto bytes = ParseByteCount(arguments.Get("--block-size"));
    if (!bytes) return Fail(Code::kUsage, "--block-size: " + bytes.error().message);
    request.block_bytes = *bytes;
  }
  if (arguments.Has("--seed")) {
    auto seed = SeedOf(arguments.Get("--seed"));
    if (!seed) return Fail(std::move(seed).error());
    request.seed = *seed;
  }
  request.budget = arguments.Get("--budget");
  request.policy = arguments.Get("--policy");
  request.catalog = arguments.Get("--catalog");
  auto deviation = TakeDeviation(arguments, request);
  if (!deviation) return Fail(std::move(deviation).error());
  auto missing = MissingOf(arguments);
  if (!missing) return Fail(std::move(missing).error());
  request.missing = *missing;
  request.allow_nonfinite = arguments.Has("--allow-nonfinite");
  request.force = arguments.Has("--force");
  request.resume = arguments.Has("--resume");
  auto taken_from_mergekit = TakeMergekitFlags(arguments, request);
  if (!taken_from_mergekit) return Fail(std::move(taken_from_mergekit).error());
  auto options = RunOptionsOf(arguments);
  if (!options) return Fail(std::move(options).error());
  request.run = std::move(*options);
  return request;
}

}  // namespace mergepipe::cli
