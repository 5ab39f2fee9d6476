#include "txn/manifest.h"

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "storage/source.h"

namespace mergepipe {
namespace {

constexpr uint64_t kMaxManifestBytes = 1u << 30;

Json FilesJson(const std::map<std::string, FileRecord>& files) {
  Json json = Json::object();
  for (const auto& [name, file] : files)
    json[name] = {{"digest", file.digest}, {"bytes", file.bytes}};
  return json;
}

Json TensorJson(const Plan& plan, size_t number, const TensorRecord& record, const std::string& file) {
  const ResolvedTensor& tensor = plan.merge->tensors[number];
  Json sources = Json::array();
  for (size_t s = 0; s < tensor.sources.size(); ++s) {
    sources.push_back({{"input", tensor.sources[s].model},
                       {"tensor", EntryOf(*plan.merge, tensor.sources[s]).name},
                       {"digest", record.sources[s]}});
  }
  Json json = RecordToJson(record);
  json.erase("source_digests");  // they stand beside the sources
  json["name"] = tensor.name;
  json["file"] = file;
  json["dtype"] = DTypeName(tensor.dtype);
  json["shape"] = tensor.shape;
  json["leaf_bytes"] = OutputLeafBytes(plan, number);
  json["rule"] = tensor.merged ? "merged" : tensor.rule;
  json["sources"] = sources;
  if (tensor.merged) {
    json["inputs"] = tensor.inputs;
    json["parameters"] = tensor.params;
  }
  return json;
}

Json UnitsJson(const Plan& plan) {
  Json json = Json::array();
  for (const Unit& unit : plan.units) {
    json.push_back({{"file", unit.file_name},
                    {"bytes", unit.layout.file_size},
                    {"header_digest", Hex(DigestOf(std::as_bytes(std::span(unit.layout.prefix))))}});
  }
  return json;
}

Json CoreJson(const ManifestContents& contents) {
  const Plan& plan = *contents.plan;
  const ResolvedMerge& merge = *plan.merge;
  Json inputs = Json::array();
  for (size_t i = 0; i < merge.models.size(); ++i) {
    inputs.push_back({{"header_digest", merge.models[i].checkpoint->HeaderDigest()},
                      {"role", plan.reference_model[i] ? "base" : "expert"}});
  }
  Json parameters = Json::array();
  for (const TensorParams& set : merge.params)
    parameters.push_back({{"global", set.global}, {"inputs", set.inputs}});
  Json tensors = Json::array();
  for (const Unit& unit : plan.units) {
    for (const size_t t : unit.tensors)
      tensors.push_back(TensorJson(plan, t, (*contents.tensors)[t], unit.file_name));
  }
  Json dropped = Json::array();
  for (const DroppedTensor& tensor : merge.dropped)
    dropped.push_back({{"input", tensor.model}, {"tensor", tensor.tensor}, {"rule", tensor.rule}});
  return {{"version", MERGEPIPE_VERSION},
          {"method", merge.method->name},
          {"seed", merge.seed},
          {"budget_bytes", nullptr},
          {"mask", "all"},
          {"certificate", nullptr},
          {"plan_digest", plan.digest},
          {"block_bytes", plan.options.block_bytes},
          {"inputs", inputs},
          {"donor", merge.donor},
          {"units", UnitsJson(plan)},
          {"tensors", tensors},
          {"parameters", parameters},
          {"dropped", dropped},
          {"files", FilesJson(contents.files)}};
}

}  // namespace

Json RecordToJson(const TensorRecord& record) {
  Json thresholds = Json::array();
  for (const ThresholdRecord& t : record.thresholds) {
    thresholds.push_back({{"input", t.input},
                          {"magnitude", t.magnitude},
                          {"equals", t.equals},
                          {"equals_kept", t.equals_kept}});
  }
  return {{"digest", record.digest},
          {"chunks", record.chunks},
          {"source_digests", record.sources},
          {"thresholds", thresholds}};
}

TensorRecord RecordFromJson(const Json& json) {
  TensorRecord record{.digest = json.at("digest"),
                      .chunks = json.at("chunks"),
                      .sources = json.at("source_digests"),
                      .thresholds = {}};
  for (const Json& t : json.at("thresholds"))
    record.thresholds.push_back({t.at("input"), t.at("magnitude"), t.at("equals"), t.at("equals_kept")});
  return record;
}

Json BuildManifest(const ManifestContents& contents) {
  Json core = CoreJson(contents);
  Json envelope = contents.envelope;
  envelope["notes"] = FilesJson(contents.notes);
  const std::string root = Sha256Hex(core.dump());
  const std::string seal = Sha256Hex(envelope.dump());
  return {{"schema", kManifestSchema},
          {"root_digest", root},
          {"core", std::move(core)},
          {"envelope", std::move(envelope)},
          {"envelope_digest", seal}};
}

Result<Json> ReadManifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  auto text = ReadSmallFile(path, kMaxManifestBytes);
  if (!text)
    return Fail(Code::kInvalidInput,
                Format("{}; only outputs of mergepipe have a manifest", text.error().message));
  Json manifest = MP_TRY(ParseJson(*text, path));
  const bool whole = manifest.is_object() && manifest.value("schema", "") == kManifestSchema &&
                     manifest.contains("core") && manifest.contains("envelope");
  if (!whole)
    return Fail(Code::kInvalidInput, Format("{}: is no manifest of the format {}", path, kManifestSchema));
  if (manifest.value("root_digest", "") != Sha256Hex(manifest["core"].dump())) {
    return Fail(
        Code::kDifference,
        Format("{}: its core does not have the root digest that it names; the manifest was changed", path));
  }
  if (manifest.value("envelope_digest", "") != Sha256Hex(manifest["envelope"].dump())) {
    return Fail(
        Code::kDifference,
        Format("{}: its envelope does not have the digest that it names; the manifest was changed", path));
  }
  return manifest;
}

std::map<std::string, TensorRecord> TensorRecords(const Json& manifest) {
  std::map<std::string, TensorRecord> records;
  for (Json tensor : manifest.at("core").at("tensors")) {
    tensor["source_digests"] = Json::array();
    for (const Json& source : tensor.at("sources"))
      tensor["source_digests"].push_back(source.at("digest"));
    records.emplace(tensor.at("name"), RecordFromJson(tensor));
  }
  return records;
}

}  // namespace mergepipe
