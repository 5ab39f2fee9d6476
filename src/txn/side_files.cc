#include "txn/side_files.h"

#include <algorithm>
#include <filesystem>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "format/chat_template.h"
#include "format/hub_cache.h"
#include "tokenizer/vocabulary.h"
#include "txn/layer_config.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

const Checkpoint& Donor(const ResolvedMerge& merge) {
  return *merge.models[merge.donor].checkpoint;
}

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

// Numbers of tokens that stand in a config: those of the model whose tokenizer is taken.
bool SetTokenIds(OrderedJson& config, const OrderedJson& theirs) {
  bool changed = false;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (!theirs.contains(key) || (config.contains(key) && config[key] == theirs[key])) continue;
    config[key] = theirs[key];
    changed = true;
  }
  return changed;
}

const Checkpoint& TokenizerModel(const ResolvedMerge& merge) {
  return *merge.models[merge.tokenizer ? merge.tokenizer->model : merge.donor].checkpoint;
}

// The donor's, but those of a tokenizer from the model whose tokenizer is taken.
Result<std::map<std::string, SideFileOrigin>> SideFilesOf(const ResolvedMerge& merge) {
  std::map<std::string, SideFileOrigin> files;
  for (const Checkpoint* owner : {&Donor(merge), &TokenizerModel(merge)}) {
    for (const std::string& name : MP_TRY(owner->SideFiles())) {
      const bool belongs = owner == (FollowsTokenizer(name) ? &TokenizerModel(merge) : &Donor(merge));
      const auto origin = belongs ? owner->OriginOf(name) : std::nullopt;
      if (origin) files[name] = *origin;
    }
  }
  return files;
}

bool HasIndex(const Plan& plan) {
  return plan.units.size() > 1 || (Donor(*plan.merge).has_index() && plan.merge->keeps_layout);
}

// Decides the files beside the weights that a loader reads.
class SideFileList {
 public:
  explicit SideFileList(const Plan& plan) : plan_(plan), merge_(*plan.merge) {}

  Result<std::map<std::string, SideFileOrigin>> Run() {
    if (HasIndex(plan_)) Write(kIndexName, BuildIndex(plan_).dump(2) + "\n");
    const OrderedJson config = MP_TRY(EditedConfig(merge_));
    if (!config.is_null()) Write(kConfigName, config.dump(2) + "\n");
    // A tokenizer that the recipe makes is written in any case.
    const bool has_tokenizer = merge_.form.copies_tokenizer || merge_.tokenizer;
    if (merge_.tokenizer && merge_.tokenizer->edit.changed()) MP_TRY(EditTokenizer());
    if (merge_.chat_template) MP_TRY(WriteChatTemplate(*merge_.chat_template));
    for (const auto& [name, origin] : MP_TRY(SideFilesOf(merge_))) {
      const bool ours = name == kRecipeName || name == kCardName || name == kManifestName ||
                        files_.count(name) > 0 || (merge_.chat_template && HoldsChatTemplates(name)) ||
                        (!has_tokenizer && (IsTokenizerFile(name) || HoldsChatTemplates(name)));
      if (!ours) files_[name] = origin;
    }
    return std::move(files_);
  }

 private:
  // What the new vocabulary makes of the tokenizer's files.
  Result<void> EditTokenizer() {
    const Checkpoint& owner = TokenizerModel(merge_);
    for (const std::string& name : MP_TRY(owner.SideFiles())) {
      if (!IsEditedFile(name)) continue;
      const auto text = MP_TRY(owner.ReadSideFile(name, kMaxTokenizerBytes));
      const std::string where = owner.name() + "/" + name;
      if (text) Write(name, MP_TRY(EditTokenizerFile(merge_.tokenizer->edit, name, *text, where)));
    }
    return {};
  }

  // Where newer loaders look for it, and where older ones do.
  Result<void> WriteChatTemplate(const std::string& chat_template) {
    Write(kTemplateName, chat_template);
    const Checkpoint& owner = TokenizerModel(merge_);
    const auto edited = files_.find(kTokenizerConfigName);
    const auto text =
        edited != files_.end() ? edited->second.text : MP_TRY(owner.ReadSideFile(kTokenizerConfigName));
    if (!text) return {};
    OrderedJson config = MP_TRY(ParseOrderedJson(*text, owner.name() + "/" + kTokenizerConfigName));
    Write(kTokenizerConfigName, WithChatTemplate(std::move(config), chat_template).dump(2) + "\n");
    return {};
  }

  void Write(const std::string& name, std::string text) { files_[name] = {std::move(text), ""}; }

  const Plan& plan_;
  const ResolvedMerge& merge_;
  std::map<std::string, SideFileOrigin> files_;
};

Result<FileRecord> WriteText(const std::string& name, const std::string& text, Staging& staging) {
  MP_TRY(staging.WriteText(name, text));
  return FileRecord{Hex(DigestOf(std::as_bytes(std::span(text)))), text.size()};
}

}  // namespace

Result<SideFiles> WriteSideFiles(const Plan& plan, const std::string& recipe_text, Staging& staging) {
  const ResolvedMerge& merge = *plan.merge;
  SideFiles made;
  for (const auto& [name, origin] : MP_TRY(SideFileList(plan).Run())) {
    if (origin.text) {
      made.files[name] = MP_TRY(WriteText(name, *origin.text, staging));
      continue;
    }
    const std::string digest = MP_TRY(staging.CopyFile(origin.path, name, Donor(merge).account()));
    std::error_code error;
    made.files[name] = {digest, fs::file_size(origin.path, error)};
  }
  made.notes[kRecipeName] = MP_TRY(WriteText(kRecipeName, recipe_text, staging));
  // Files alone make files alone: there is no model that a card could be of.
  if (!Donor(merge).is_single_file() && merge.form.writes_card)
    made.notes[kCardName] = MP_TRY(WriteText(kCardName, ModelCard(merge, recipe_text), staging));
  return made;
}

Result<PlannedCheckpoint> PlanOutput(const Plan& plan, const std::string& folder) {
  PlannedCheckpoint output{.folder = folder, .shards = {}, .index = {}, .side_files = {}};
  for (const Unit& unit : plan.units)
    output.shards.push_back({unit.file_name, unit.layout.prefix, unit.layout.file_size});
  output.side_files = MP_TRY(SideFileList(plan).Run());
  if (output.side_files.erase(kIndexName) > 0) output.index = BuildIndex(plan);
  return output;
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
  if (&TokenizerModel(merge) != &Donor(merge)) {
    const OrderedJson theirs = MP_TRY(TokenizerModel(merge).Config());
    const bool inner =
        theirs.is_object() && theirs.contains("text_config") && theirs["text_config"].is_object();
    for (OrderedJson* level : levels)
      changed = SetTokenIds(*level, level != &config && inner ? theirs["text_config"] : theirs) || changed;
  }
  for (const SlicedStack& stack : merge.sliced)
    changed = FitLayers(stack, config) || changed;
  if (const std::string& name = merge.models[merge.donor].architecture; !name.empty()) {
    config["architectures"] = OrderedJson::array({name});
    changed = true;
  }
  return changed ? config : OrderedJson();
}

std::string ModelCard(const ResolvedMerge& merge, const std::string& recipe_text) {
  std::string parents, bullets;
  for (const ResolvedModel& model : merge.models) {
    const auto hub_name = HubNameOf(model.path);
    if (hub_name) parents += Format("- {}\n", JsonText(*hub_name));
    bullets += Format("- `{}`\n", IsUtf8(model.name) ? model.name : JsonText(model.name));
  }
  const Method& method = *merge.method;
  std::string card =
      Format("---\n{}library_name: transformers\ntags:\n- mergepipe\n- mergekit\n- merge\n---\n",
             parents.empty() ? "" : "base_model:\n" + parents);
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
  for (const auto& [name, origin] : MP_TRY(SideFilesOf(*plan.merge))) {
    std::error_code error;
    const uint64_t size = origin.text ? origin.text->size() : fs::file_size(origin.path, error);
    if (!error) bytes += size;
  }
  return bytes;
}

}  // namespace mergepipe
