#include "txn/side_files.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

const Checkpoint& Donor(const ResolvedMerge& merge) {
  return *merge.models[merge.donor].checkpoint;
}

// Names that configs use for the number of layers.
constexpr std::array<const char*, 6> kLayerKeys = {
    "num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers", "decoder_layers"};

bool SetTypes(OrderedJson& config, const std::string& dtype) {
  bool changed = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.contains(key) || config[key] == dtype) continue;
    config[key] = dtype;
    changed = true;
  }
  if (!config.contains("dtype") && !config.contains("torch_dtype")) {
    config["torch_dtype"] = dtype;
    changed = true;
  }
  return changed;
}

// Layer count and per-layer lists (layer_types and the like) follow the slices.
bool SetLayers(OrderedJson& config, const ResolvedMerge& merge) {
  bool changed = false;
  const auto layers = static_cast<int64_t>(merge.layer_sources.size());
  for (auto& [key, value] : config.items()) {
    const bool counts = std::find(kLayerKeys.begin(), kLayerKeys.end(), key) != kLayerKeys.end();
    if (counts && value.is_number_integer() && value == merge.donor_layers && layers != merge.donor_layers) {
      value = layers;
      changed = true;
    } else if (value.is_array() && static_cast<int64_t>(value.size()) == merge.donor_layers &&
               StartsWith(key, "layer_")) {
      OrderedJson mapped = OrderedJson::array();
      for (const int64_t source : merge.layer_sources)
        mapped.push_back(value[static_cast<size_t>(std::min(source, merge.donor_layers - 1))]);
      changed = changed || mapped != value;
      value = std::move(mapped);
    }
  }
  return changed;
}

Json BuildIndex(const Plan& plan) {
  const ResolvedMerge& merge = *plan.merge;
  const auto& donor_index = Donor(merge).index();
  Json index = Json::object();
  Json metadata = Json::object();
  if (donor_index && donor_index->contains("metadata") && (*donor_index)["metadata"].is_object())
    metadata = (*donor_index)["metadata"];
  uint64_t total_bytes = 0;
  Json weight_map = Json::object();
  for (const Unit& unit : plan.units) {
    for (const size_t t : unit.tensors) {
      total_bytes += merge.tensors[t].bytes();
      weight_map[merge.tensors[t].name] = unit.file_name;
    }
  }
  if (!merge.keeps_layout) metadata.erase("total_parameters");
  metadata["total_size"] = total_bytes;
  index["metadata"] = std::move(metadata);
  index["weight_map"] = std::move(weight_map);
  return index;
}

// The number of tokens, wherever a config has it.
bool SetVocabSize(OrderedJson& config, uint64_t rows) {
  if (!config.contains("vocab_size") || config["vocab_size"] == rows) return false;
  config["vocab_size"] = rows;
  return true;
}

struct SideFile {
  size_t model = 0;  // whose folder it is in
  std::string name;
};

// The donor's, but those of the tokenizer from the model whose tokenizer is taken.
Result<std::vector<SideFile>> SideFilesOf(const ResolvedMerge& merge) {
  const size_t tokenizer = merge.tokenizer ? merge.tokenizer->model : merge.donor;
  std::vector<SideFile> files;
  for (const std::string& name : MP_TRY(Donor(merge).SideFiles())) {
    if (tokenizer == merge.donor || !IsTokenizerFile(name)) files.push_back({merge.donor, name});
  }
  if (tokenizer == merge.donor) return files;
  for (const std::string& name : MP_TRY(merge.models[tokenizer].checkpoint->SideFiles())) {
    if (IsTokenizerFile(name)) files.push_back({tokenizer, name});
  }
  return files;
}

class SideFileWriter {
 public:
  SideFileWriter(const Plan& plan, const std::string& recipe_text, Staging& staging)
      : plan_(plan), merge_(*plan.merge), recipe_(recipe_text), staging_(staging) {}

  Result<SideFiles> Run() {
    if (plan_.units.size() > 1 || (Donor(merge_).has_index() && merge_.keeps_layout))
      MP_TRY(WriteText(kIndexName, BuildIndex(plan_).dump(2) + "\n", made_.files));
    const OrderedJson config = MP_TRY(EditedConfig(merge_));
    if (!config.is_null()) MP_TRY(WriteText(kConfigName, config.dump(2) + "\n", made_.files));
    for (const SideFile& file : MP_TRY(SideFilesOf(merge_))) {
      const bool ours = file.name == kRecipeName || file.name == kCardName || file.name == kManifestName ||
                        made_.files.count(file.name) > 0;
      if (!ours) MP_TRY(Bring(file));
    }
    MP_TRY(WriteText(kRecipeName, recipe_, made_.notes));
    MP_TRY(WriteText(kCardName, ModelCard(merge_, recipe_), made_.notes));
    return std::move(made_);
  }

 private:
  // A copy, or what the new vocabulary makes of a tokenizer's file.
  Result<void> Bring(const SideFile& file) {
    const Checkpoint& owner = *merge_.models[file.model].checkpoint;
    const std::string from = owner.folder() + "/" + file.name;
    const bool edited = merge_.tokenizer && merge_.tokenizer->edit.changed() && IsEditedFile(file.name);
    if (edited) {
      std::string text = MP_TRY(staging_.ReadSideFile(from, owner.account()));
      const std::string where = owner.name() + "/" + file.name;
      text = MP_TRY(EditTokenizerFile(merge_.tokenizer->edit, file.name, std::move(text), where));
      return WriteText(file.name, text, made_.files);
    }
    const std::string digest = MP_TRY(staging_.CopyFile(from, file.name, owner.account()));
    std::error_code error;
    made_.files[file.name] = {digest, fs::file_size(from, error)};
    return {};
  }

  Result<void> WriteText(const std::string& name, const std::string& text,
                         std::map<std::string, FileRecord>& records) {
    records[name] = {Hex(DigestOf(std::as_bytes(std::span(text)))), text.size()};
    return staging_.WriteText(name, text);
  }

  const Plan& plan_;
  const ResolvedMerge& merge_;
  const std::string& recipe_;
  Staging& staging_;
  SideFiles made_;
};

}  // namespace

Result<SideFiles> WriteSideFiles(const Plan& plan, const std::string& recipe_text, Staging& staging) {
  return SideFileWriter(plan, recipe_text, staging).Run();
}

Result<OrderedJson> EditedConfig(const ResolvedMerge& merge) {
  OrderedJson config = MP_TRY(Donor(merge).Config());
  if (!config.is_object()) return OrderedJson();
  bool changed = false;
  std::vector<OrderedJson*> levels = {&config};
  if (config.contains("text_config") && config["text_config"].is_object())
    levels.push_back(&config["text_config"]);
  if (merge.out_dtype) {
    for (OrderedJson* level : levels) {
      const bool names_type = level == &config || level->contains("dtype") || level->contains("torch_dtype");
      if (names_type && SetTypes(*level, std::string(DTypeTorchName(*merge.out_dtype)))) changed = true;
    }
  }
  if (merge.unties_head) {
    for (OrderedJson* level : levels) {
      const bool here = level == &config || level->contains("tie_word_embeddings");
      if (here) (*level)["tie_word_embeddings"] = false;
    }
    changed = true;
  }
  for (OrderedJson* level : levels) {
    if (merge.tokenizer) changed = SetVocabSize(*level, merge.tokenizer->rows) || changed;
  }
  if (!merge.layer_sources.empty()) {
    for (OrderedJson* level : levels)
      changed = SetLayers(*level, merge) || changed;
  }
  return changed ? config : OrderedJson();
}

std::string ModelCard(const ResolvedMerge& merge, const std::string& recipe_text) {
  std::string parents, bullets;
  for (const ResolvedModel& model : merge.models) {
    parents += Format("- {}\n", JsonText(model.name));
    bullets += Format("- `{}`\n", model.name);
  }
  const Method& method = *merge.method;
  std::string card =
      Format("---\nbase_model:\n{}library_name: transformers\ntags:\n- mergepipe\n- mergekit\n- merge\n---\n",
             parents);
  card += Format("# Merged model\n\nMade with mergepipe from checkpoints on disk, by the method `{}`: {}.\n",
                 method.name, method.summary);
  if (!method.paper.empty()) card += Format("Paper: {}.\n", method.paper);
  card += Format("\n## Models\n\n{}\n## Recipe\n\n```yaml\n{}```\n", bullets,
                 EndsWith(recipe_text, "\n") ? recipe_text : recipe_text + "\n");
  card += Format(
      "\n`{}` names every input, parameter and digest; `mergepipe verify` checks this folder against it.\n",
      kManifestName);
  return card;
}

Result<uint64_t> EstimateSideFileBytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (const SideFile& file : MP_TRY(SideFilesOf(*plan.merge))) {
    std::error_code error;
    const uint64_t size =
        fs::file_size(plan.merge->models[file.model].checkpoint->folder() + "/" + file.name, error);
    if (!error) bytes += size;
  }
  return bytes;
}

}  // namespace mergepipe
