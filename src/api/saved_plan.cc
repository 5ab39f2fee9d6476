#include "api/saved_plan.h"

#include <filesystem>

#include "api/output_form.h"
#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "planner/decision.h"
#include "storage/output_file.h"

namespace mergepipe {
namespace {

constexpr const char* kSchema = "mergepipe.plan/1";
constexpr uint64_t kMaxPlanBytes = 1u << 30;

Json StampJson(const FileStamp& stamp) {
  return {stamp.device, stamp.inode, stamp.size, stamp.mtime_ns, stamp.ctime_ns};
}

FileStamp StampFrom(const Json& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4)};
}

Json ModelJson(const Plan& plan, size_t number) {
  const ResolvedModel& model = plan.merge->models[number];
  Json stamps = Json::array();
  for (const Shard& shard : model.checkpoint->shards())
    stamps.push_back(StampJson(shard.source->Stamp()));
  return {{"name", model.name},
          {"path", model.path},
          {"role", plan.reference_model[number] ? "base" : "expert"},
          {"header_digest", model.checkpoint->HeaderDigest()},
          {"stamps", stamps}};
}

Json TensorJson(const Plan& plan, size_t t) {
  Json json = TensorDecision(plan, t);
  json["name"] = plan.merge->tensors[t].name;
  json["expected"] = plan.expected[t];
  Json sources = Json::array();
  for (const TensorSource& source : plan.merge->tensors[t].sources)
    sources.push_back(source.model);
  json["models"] = sources;
  if (plan.merge->tensors[t].merged) json["inputs"] = plan.merge->tensors[t].inputs;
  return json;
}

Result<SavedPlan> FromJson(const Json& json, const std::string& path) {
  try {
    SavedPlan saved;
    saved.recipe = {json.at("recipe"), json.at("recipe_path"), 1, {}};
    const Json& options = json.at("options");
    saved.request.block_bytes = options.at("block_bytes");
    saved.request.seed = options.at("seed");
    saved.request.allow_nonfinite = options.at("allow_nonfinite");
    saved.request.missing = MP_TRY(ParseMissing(options.at("missing")));
    saved.request.form = OutputFormFrom(options.at("form"));
    saved.memory_bytes = options.at("memory_bytes");
    saved.decision = {.budget = json.at("budget"),
                      .tensors = {},
                      .paths = json.at("paths"),
                      .header_digests = {},
                      .plan_digest = json.at("plan_digest"),
                      .origin = "the plan was made"};
    for (const Json& model : json.at("models")) {
      saved.decision.header_digests.push_back(model.at("header_digest"));
      auto& stamps = saved.stamps.emplace_back();
      for (const Json& stamp : model.at("stamps"))
        stamps.push_back(StampFrom(stamp));
    }
    for (const Json& tensor : json.at("tensors")) {
      saved.decision.tensors[tensor.at("name")] = tensor;
      saved.expected[tensor.at("name")] = tensor.at("expected").get<std::vector<std::string>>();
    }
    return saved;
  } catch (const Json::exception& e) {
    return Fail(Code::kInvalidInput, Format("{}: is no plan of the format {}: {}", path, kSchema, e.what()));
  }
}

}  // namespace

std::vector<std::vector<std::string>> SavedPlan::Expected(const ResolvedMerge& merge) const {
  std::vector<std::vector<std::string>> all;
  for (const ResolvedTensor& tensor : merge.tensors) {
    const auto found = expected.find(tensor.name);
    const bool fits = found != expected.end() && found->second.size() == tensor.sources.size();
    all.push_back(fits ? found->second : std::vector<std::string>{});
  }
  return all;
}

Result<void> SavePlan(const std::string& path, const Plan& plan, const RecipeText& recipe,
                      const MergeRequest& request) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !ReadPlanJson(path))
    return Fail(Code::kUsage,
                Format("{}: is there and is no plan, so it is not replaced; name another file", path));
  const ResolvedMerge& merge = *plan.merge;
  Json models = Json::array();
  for (size_t m = 0; m < merge.models.size(); ++m)
    models.push_back(ModelJson(plan, m));
  Json tensors = Json::array();
  for (size_t t = 0; t < merge.tensors.size(); ++t)
    tensors.push_back(TensorJson(plan, t));
  Json json = {{"schema", kSchema},
               {"version", MERGEPIPE_VERSION},
               {"recipe", recipe.text},
               {"recipe_path", recipe.where},
               {"method", merge.method->name},
               {"options",
                {{"block_bytes", request.block_bytes},
                 {"seed", request.seed},
                 {"allow_nonfinite", request.allow_nonfinite},
                 {"missing", MissingName(request.missing)},
                 {"form", OutputFormJson(request.form)},
                 {"memory_bytes", plan.options.memory_bytes}}},
               {"paths", merge.paths},
               {"models", models},
               {"budget", BudgetJson(plan)},
               {"tensors", tensors},
               {"plan_digest", plan.digest}};
  json["digest"] = Sha256Hex(json.dump());
  Ledger unused;
  const std::string part = path + ".part";
  MP_TRY(WriteSmallFile(part, JsonText(json, 1) + "\n", unused));
  if (::rename(part.c_str(), path.c_str()) != 0) {
    const std::string why = SystemText(errno);
    ::unlink(part.c_str());
    return Fail(Code::kIo, Format("{}: can not be written: {}", path, why));
  }
  return {};
}

Result<Json> ReadPlanJson(const std::string& path) {
  const std::string text = MP_TRY(ReadSmallFile(path, kMaxPlanBytes));
  Json json = MP_TRY(ParseJson(text, path));
  if (!json.is_object() || json.value("schema", Json()) != kSchema)
    return Fail(Code::kInvalidInput, Format("{}: is no plan of the format {}", path, kSchema));
  const Json digest = json.value("digest", Json());
  json.erase("digest");
  if (digest != Sha256Hex(json.dump()))
    return Fail(Code::kInvalidInput,
                Format("{}: does not have the digest that it names; the plan was changed", path));
  return json;
}

Result<SavedPlan> LoadPlan(const std::string& path) {
  const Json json = MP_TRY(ReadPlanJson(path));
  if (json.value("version", Json()) != MERGEPIPE_VERSION) {
    return Fail(Code::kUnsupported,
                Format("{}: was made by another version than this, {}; plan again", path, MERGEPIPE_VERSION));
  }
  return FromJson(json, path);
}

Result<void> CheckStamps(const SavedPlan& saved, const ResolvedMerge& merge) {
  // By digests, where all that reaches the output has one; of copied tensors that is the first source alone.
  std::vector<bool> checked(merge.models.size(), true);
  for (const ResolvedTensor& tensor : merge.tensors) {
    const auto found = saved.expected.find(tensor.name);
    for (size_t s = 0; s < (tensor.merged ? tensor.sources.size() : 1); ++s) {
      const bool known =
          found != saved.expected.end() && s < found->second.size() && !found->second[s].empty();
      if (!known) checked[tensor.sources[s].model] = false;
    }
  }
  for (size_t m = 0; m < merge.models.size(); ++m) {
    const auto& shards = merge.models[m].checkpoint->shards();
    bool same = m < saved.stamps.size() && saved.stamps[m].size() == shards.size();
    for (size_t i = 0; same && i < shards.size(); ++i)
      same = shards[i].source->Stamp() == saved.stamps[m][i];
    if (same || checked[m]) continue;
    return Fail(
        Code::kInvalidInput,
        Format("{}: the input '{}' changed since the plan was made: its files are not the same ones, and the "
               "plan knows no digests of their content (mergepipe analyze gives them); plan again",
               merge.models[m].path, merge.models[m].name));
  }
  return {};
}

}  // namespace mergepipe
