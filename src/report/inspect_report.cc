#include <algorithm>
#include <map>

#include "base/text.h"
#include "base/try.h"
#include "recipe/layers.h"
#include "report/verify_report.h"

namespace mergepipe {
namespace {

uint64_t TotalElements(const Checkpoint& checkpoint) {
  uint64_t total = 0;
  for (const auto& [name, place] : checkpoint.tensors())
    total += checkpoint.entry(place).elements;
  return total;
}

std::map<std::string, uint64_t> BytesByType(const Checkpoint& checkpoint) {
  std::map<std::string, uint64_t> bytes;
  for (const auto& [name, place] : checkpoint.tensors())
    bytes[std::string(DTypeName(checkpoint.entry(place).dtype))] += checkpoint.entry(place).bytes();
  return bytes;
}

Json FilesJson(const Checkpoint& checkpoint) {
  Json files = Json::array();
  for (const Shard& shard : checkpoint.shards()) {
    files.push_back({{"file", shard.file_name},
                     {"bytes", shard.header.file_size},
                     {"header_bytes", shard.header.data_start},
                     {"tensors", shard.header.tensors.size()},
                     {"metadata", shard.header.metadata}});
  }
  return files;
}

}  // namespace

Result<Json> InspectReportJson(const Checkpoint& checkpoint, const std::string& path) {
  Json tensors = Json::array();
  for (const auto& [name, place] : checkpoint.tensors()) {
    const TensorEntry& entry = checkpoint.entry(place);
    const Shard& shard = checkpoint.shards()[place.shard];
    tensors.push_back({{"name", name},
                       {"dtype", DTypeName(entry.dtype)},
                       {"shape", entry.shape},
                       {"bytes", entry.bytes()},
                       {"file", shard.file_name},
                       {"offset", shard.header.data_start + entry.begin}});
  }
  const OrderedJson config = MP_TRY(checkpoint.Config());
  const auto text = [&](const char* key) {
    return config.is_object() && config.contains(key) ? Json::parse(config[key].dump()) : Json();
  };
  const auto side_files = MP_TRY(checkpoint.SideFiles());
  return Json{{"model", checkpoint.name()},
              {"path", path},
              {"ok", true},
              {"files", FilesJson(checkpoint)},
              {"tensors", tensors},
              {"totals",
               {{"tensors", checkpoint.tensors().size()},
                {"elements", TotalElements(checkpoint)},
                {"bytes", checkpoint.data_bytes()},
                {"bytes_by_dtype", BytesByType(checkpoint)}}},
              {"layers", CountLayers(checkpoint)},
              {"architectures", text("architectures")},
              {"model_type", text("model_type")},
              {"tie_word_embeddings", text("tie_word_embeddings")},
              {"header_digest", checkpoint.HeaderDigest()},
              {"side_files", side_files},
              {"notes", checkpoint.notes()}};
}

Result<std::string> InspectReportText(const Checkpoint& checkpoint) {
  const OrderedJson config = MP_TRY(checkpoint.Config());
  std::string text =
      Format("{}: {} tensors, {} elements, {}\n", checkpoint.name(), checkpoint.tensors().size(),
             TotalElements(checkpoint), HumanBytes(checkpoint.data_bytes()));
  if (config.is_object() && config.contains("architectures")) {
    for (const OrderedJson& name : config["architectures"])
      text += Format("  architecture  {}\n", name.is_string() ? name.get<std::string>() : name.dump());
  }
  for (const auto& [prefix, count] : CountLayers(checkpoint))
    text += Format("  layers        {} under {}\n", count, prefix);
  for (const auto& [dtype, bytes] : BytesByType(checkpoint))
    text += Format("  {:<13} {}\n", dtype, HumanBytes(bytes));
  for (const Shard& shard : checkpoint.shards())
    text += Format("  {}  {}, {} tensors, sound\n", shard.file_name, HumanBytes(shard.header.file_size),
                   shard.header.tensors.size());
  text += "\n";
  for (const auto& [name, place] : checkpoint.tensors())
    text += Format("  {:<5} {:<20} {}\n", DTypeName(checkpoint.entry(place).dtype),
                   ShapeText(checkpoint.entry(place).shape), name);
  for (const std::string& note : checkpoint.notes())
    text += Format("note: {}\n", note);
  return text;
}

}  // namespace mergepipe
