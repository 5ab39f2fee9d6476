#include "txn/manifest.h"

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "planner/decision.h"
#include "storage/source.h"
#include "txn/manifest_shape.h"

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
    if (tensor.sources[s].rows != nullptr) sources.back()["rows"] = tensor.sources[s].rows->digest;
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
  json["decision"] = TensorDecision(plan, number);
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

Json DroppedJson(const DroppedTensor& tensor) {
  return {{"input", tensor.model}, {"tensor", tensor.tensor}, {"rule", tensor.rule}};
}

Json InputsJson(const Plan& plan) {
  Json inputs = Json::array();
  for (size_t i = 0; i < plan.merge->models.size(); ++i) {
    inputs.push_back({{"header_digest", plan.merge->models[i].checkpoint->HeaderDigest()},
                      {"role", plan.reference_model[i] ? "base" : "expert"}});
  }
  return inputs;
}

Json ParametersJson(const ResolvedMerge& merge) {
  Json parameters = Json::array();
  for (const TensorParams& set : merge.params)
    parameters.push_back({{"global", set.global}, {"inputs", set.inputs}});
  return parameters;
}

// Writes one canonical object (sorted keys, no whitespace) member by member into its digest, and the same
// with line breaks to a file, so that no document of all tensors is ever in memory. Members must come in the
// order of their keys.
class ObjectWriter {
 public:
  explicit ObjectWriter(TextSink& sink) : sink_(sink) {}

  Result<void> Member(const std::string& key, const Json& value) {
    MP_TRY(Key(key));
    return Put(value.dump());
  }
  Result<void> OpenArray(const std::string& key) {
    MP_TRY(Key(key));
    first_element_ = true;
    return Put("[");
  }
  Result<void> Element(const Json& value) {
    if (!std::exchange(first_element_, false)) MP_TRY(Put(","));
    MP_TRY(sink_.Write("\n  "));
    return Put(value.dump());
  }
  Result<void> CloseArray() { return Put("]"); }
  /// Ends the object and returns its digest.
  Result<std::string> Close() {
    MP_TRY(Put("}"));
    return sha_.FinishHex();
  }

 private:
  Result<void> Key(const std::string& key) {
    MP_TRY(Put(std::exchange(first_member_, false) ? "{" : ","));
    MP_TRY(sink_.Write("\n "));
    return Put(Json(key).dump() + ":");
  }
  Result<void> Put(std::string_view text) {
    sha_.Update(text);
    return sink_.Write(text);
  }

  TextSink& sink_;
  Sha256 sha_;
  bool first_member_ = true;
  bool first_element_ = true;
};

Result<std::string> WriteCore(const ManifestContents& contents, TextSink& sink) {
  const Plan& plan = *contents.plan;
  const ResolvedMerge& merge = *plan.merge;
  ObjectWriter core(sink);
  MP_TRY(core.Member("block_bytes", plan.options.block_bytes));
  MP_TRY(core.Member("budget", BudgetJson(plan)));
  MP_TRY(core.Member("donor", merge.donor));
  MP_TRY(core.OpenArray("dropped"));
  for (const DroppedTensor& tensor : merge.dropped)
    MP_TRY(core.Element(DroppedJson(tensor)));
  MP_TRY(core.CloseArray());
  MP_TRY(core.Member("files", FilesJson(contents.files)));
  MP_TRY(core.Member("inputs", InputsJson(plan)));
  MP_TRY(core.Member("method", merge.method->name));
  MP_TRY(core.Member("parameters", ParametersJson(merge)));
  MP_TRY(core.Member("plan_digest", plan.digest));
  MP_TRY(core.Member("seed", merge.seed));
  MP_TRY(core.OpenArray("tensors"));
  for (const Unit& unit : plan.units) {
    for (const size_t t : unit.tensors)
      MP_TRY(core.Element(TensorJson(plan, t, (*contents.tensors)[t], unit.file_name)));
  }
  MP_TRY(core.CloseArray());
  MP_TRY(core.Member("units", UnitsJson(plan)));
  MP_TRY(core.Member("version", MERGEPIPE_VERSION));
  return core.Close();
}

// A field's text; "" where it is missing or something else.
std::string TextOf(const Json& json, const char* key) {
  const auto field = json.find(key);
  return field != json.end() && field->is_string() ? field->get<std::string>() : "";
}

}  // namespace

Json RecordToJson(const TensorRecord& record) {
  Json thresholds = Json::array();
  for (const ThresholdRecord& t : record.thresholds) {
    Json& row = thresholds.emplace_back(Json{{"input", t.input},
                                             {"magnitude", t.magnitude},
                                             {"equals", t.equals},
                                             {"equals_kept", t.equals_kept}});
    if (!t.of.empty()) row["of"] = t.of;
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
    record.thresholds.push_back(
        {t.at("input"), t.at("magnitude"), t.at("equals"), t.at("equals_kept"), TextOf(t, "of")});
  return record;
}

Result<std::string> WriteManifest(const ManifestContents& contents, TextSink& sink) {
  MP_TRY(sink.Write("{\"core\":"));
  const std::string root = MP_TRY(WriteCore(contents, sink));
  Json envelope = contents.envelope;
  envelope["notes"] = FilesJson(contents.notes);
  const Json rest = {{"envelope", envelope},
                     {"envelope_digest", Sha256Hex(JsonText(envelope))},
                     {"root_digest", root},
                     {"schema", kManifestSchema}};
  // The rest follows as further members of the one object.
  MP_TRY(sink.Write(",\n" + JsonText(rest, 1).substr(2)));
  MP_TRY(sink.Write("\n"));
  return root;
}

Result<Json> ReadManifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  auto text = ReadSmallFile(path, kMaxManifestBytes);
  if (!text)
    return Fail(Code::kInvalidInput,
                Format("{}; only outputs of mergepipe have a manifest", text.error().message));
  Json manifest = MP_TRY(ParseJson(*text, path));
  const bool whole = manifest.is_object() && TextOf(manifest, "schema") == kManifestSchema &&
                     manifest.contains("core") && manifest.contains("envelope");
  if (!whole)
    return Fail(Code::kInvalidInput, Format("{}: is no manifest of the format {}", path, kManifestSchema));
  if (TextOf(manifest, "root_digest") != Sha256Hex(manifest["core"].dump())) {
    return Fail(
        Code::kDifference,
        Format("{}: its core does not have the root digest that it names; the manifest was changed", path));
  }
  if (TextOf(manifest, "envelope_digest") != Sha256Hex(manifest["envelope"].dump())) {
    return Fail(
        Code::kDifference,
        Format("{}: its envelope does not have the digest that it names; the manifest was changed", path));
  }
  const std::string misshapen = MisshapenField(manifest);
  if (!misshapen.empty()) {
    return Fail(Code::kInvalidInput, Format("{}: is no manifest of the format {}: '{}' is missing or is not "
                                            "what the format says",
                                            path, kManifestSchema, misshapen));
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
