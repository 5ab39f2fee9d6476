#include "recipe/resolve.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/try.h"
#include "mergepipe/mergepipe.h"
#include "recipe/chat_template_choice.h"
#include "recipe/expert_layout.h"
#include "recipe/parameter_check.h"
#include "recipe/resolve_state.h"
#include "recipe/scope_builder.h"
#include "recipe/tensor_resolver.h"
#include "recipe/vocabulary_resolver.h"

namespace mergepipe {
namespace {

std::string FolderOf(const std::string& recipe_path) {
  const std::string folder = std::filesystem::path(recipe_path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Turns a Recipe and opened headers into output tensors, step by step; each step adds all its faults before
// the next is tried.
class Resolver {
 public:
  Resolver(const Recipe& recipe, const ResolveOptions& options, Ledger& ledger)
      : state_{.recipe = recipe,
               .options = options,
               .shelf = ModelShelf(FolderOf(recipe.where), options, ledger)} {}

  Result<ResolvedMerge> Run() {
    auto method = ReadMethodAndTypes();
    if (!method) return Fail(WithRecipeFaults(std::move(method).error()));
    ParameterCheck check(*state_.method, state_.recipe);
    check.CheckNames();
    OpenModels();
    CompareExperts();
    if (HasFaults()) return Verdict(check);
    BuildScopes(state_);
    ChooseChatTemplate(state_);
    if (HasFaults()) return Verdict(check);
    ResolveVocabulary(state_);
    LeaveOutChatTemplate();
    if (HasFaults()) return Verdict(check);
    ResolveTensors(state_);
    check.CheckReach(state_.scopes, !state_.files_alone);
    if (HasFaults() || check.HasFaults() || !state_.recipe.faults.empty()) return Verdict(check);
    for (std::string& warning : check.TakeWarnings())
      state_.merge.warnings.push_back(std::move(warning));
    return Finish();
  }

 private:
  bool HasFaults() const { return !state_.shelf.faults().empty() || !state_.faults.empty(); }

  Result<void> ReadMethodAndTypes() {
    state_.method = FindMethod(state_.recipe.merge_method);
    state_.merge.method = state_.method;
    state_.merge.warnings = state_.recipe.warnings;
    state_.merge.seed = state_.options.seed;
    state_.merge.form = state_.options.form;
    if (state_.method == nullptr) {
      return Fail(Code::kUsage,
                  Format("{}: there is no merge_method '{}'{}; known: {}", state_.recipe.where,
                         state_.recipe.merge_method, DidYouMean(state_.recipe.merge_method, MethodNames()),
                         Join(MethodNames(), ", ")));
    }
    for (const auto& [key, name] :
         {std::pair("dtype", &state_.recipe.dtype), std::pair("out_dtype", &state_.recipe.out_dtype)}) {
      if (!name->has_value() || (*name)->empty()) continue;
      const auto dtype = DTypeFromTorchName(**name);
      if (!dtype || !IsMergeable(*dtype)) {
        return Fail(
            Code::kUsage,
            Format("{}: {} '{}' is none of float32, float16, bfloat16, float64{}", state_.recipe.where, key,
                   **name, dtype ? ": it would leave whole numbers or codes of the weights" : ""));
      }
      state_.merge.out_dtype = dtype;  // out_dtype comes last and wins
    }
    return {};
  }

  void OpenModels() {
    if (state_.recipe.base_model) state_.base = state_.Open(*state_.recipe.base_model);
    for (const ModelRef* ref : ModelRefs(state_.recipe))
      state_.Open(*ref);
    if (state_.method->needs_base && !state_.recipe.base_model && state_.recipe.slices.empty() &&
        state_.recipe.modules.empty()) {
      state_.faults.push_back(
          Format("{}: the method '{}' needs a 'base_model'", state_.recipe.where, state_.method->name));
    }
    const auto& models = state_.shelf.models();
    state_.files_alone = std::all_of(models.begin(), models.end(), [](const ResolvedModel& model) {
      return model.checkpoint->is_single_file();
    });
    for (const ResolvedModel& model : models)
      RefuseQuantized(model);
  }

  // One tensor for all experts and one for each can not be merged with each other, nor would hundreds of
  // missing tensors tell why.
  void CompareExperts() {
    const auto& models = state_.shelf.models();
    std::optional<ExpertLayout> first;
    const ResolvedModel* owner = nullptr;
    for (const ResolvedModel& model : models) {
      const auto layout = ExpertLayoutOf(*model.checkpoint);
      if (!layout) continue;
      if (!first) {
        first = layout;
        owner = &model;
      } else if (layout->fused != first->fused) {
        const bool here = layout->fused;
        const ResolvedModel& fused = here ? model : *owner;
        const ResolvedModel& single = here ? *owner : model;
        state_.faults.push_back(
            Format("{}: stores the experts of a layer in one tensor ('{}') but {} stores them one by one "
                   "('{}'); load "
                   "{} with transformers and save it again, which stores them one by one",
                   fused.name, here ? layout->example : first->example, single.name,
                   here ? first->example : layout->example, fused.name));
      }
    }
  }

  void RefuseQuantized(const ResolvedModel& model) {
    const auto config = model.checkpoint->Config();
    if (!config) {
      state_.faults.push_back(config.error().message);
    } else if (config->is_object() && config->contains("quantization_config") &&
               state_.method->name != "passthrough") {
      state_.Unsupported(
          Format("{}: its config.json has a quantization_config; blending quantised codes means nothing, "
                 "dequantise the model first",
                 model.name));
    }
  }

  Result<ResolvedMerge> Finish() {
    std::sort(state_.merge.tensors.begin(), state_.merge.tensors.end(),
              [](const ResolvedTensor& a, const ResolvedTensor& b) { return a.name < b.name; });
    for (size_t i = 1; i < state_.merge.tensors.size(); ++i) {
      if (state_.merge.tensors[i].name == state_.merge.tensors[i - 1].name) {
        return Fail(Code::kUsage, Format("{}: two rules make the output tensor '{}'", state_.recipe.where,
                                         state_.merge.tensors[i].name));
      }
    }
    if (state_.merge.tensors.empty())
      return Fail(Code::kUsage, Format("{}: the merge has no output tensor", state_.recipe.where));
    const auto& donor = state_.CheckpointOf(state_.merge.donor).tensors();
    const auto in_donor = [&](const ResolvedTensor& tensor) { return donor.count(tensor.name) > 0; };
    state_.merge.keeps_layout =
        state_.merge.keeps_layout && !state_.merge.form.shard_bytes &&
        state_.merge.tensors.size() == donor.size() &&
        std::all_of(state_.merge.tensors.begin(), state_.merge.tensors.end(), in_donor);
    for (const ResolvedModel& model : state_.shelf.models()) {
      for (const std::string& note : model.checkpoint->notes())
        state_.merge.warnings.push_back(note);
    }
    NoteUntiedHead();
    if (state_.vocabulary)
      state_.merge.tokenizer = {state_.vocabulary->model, std::move(state_.vocabulary->edit),
                                state_.vocabulary->rows};
    NoteUnusedArchitectures();
    for (const std::string& warning : state_.shelf.warnings())
      state_.merge.warnings.push_back(warning);
    state_.merge.models = std::move(state_.shelf.models());
    state_.merge.paths = state_.shelf.paths();
    AccountForInputs();
    return std::move(state_.merge);
  }

  // A template without a tokenizer would be read by nobody.
  void LeaveOutChatTemplate() {
    if (state_.options.form.copies_tokenizer || state_.vocabulary || !state_.merge.chat_template) return;
    state_.merge.chat_template.reset();
    state_.merge.warnings.push_back(
        Format("{}: the chat template is not written, since --no-copy-tokenizer leaves out the tokenizer",
               state_.recipe.where));
  }

  void NoteUnusedArchitectures() {
    const auto& models = state_.shelf.models();
    for (size_t m = 0; m < models.size(); ++m) {
      if (m == state_.merge.donor || models[m].architecture.empty()) continue;
      state_.merge.warnings.push_back(
          Format("override_architecture of '{}' is ignored: merging goes by tensor names, and the output's "
                 "config is "
                 "that of '{}'",
                 models[m].name, models[state_.merge.donor].name));
    }
  }

  // A head that the donor does not store was untied by another model: the output's config must say so.
  void NoteUntiedHead() {
    const auto& donor = state_.CheckpointOf(state_.merge.donor);
    const auto is_head = [](const ResolvedTensor& tensor) { return tensor.name == "lm_head.weight"; };
    const auto& tensors = state_.merge.tensors;
    state_.merge.unties_head =
        donor.Find("lm_head.weight") == nullptr && std::any_of(tensors.begin(), tensors.end(), is_head);
    if (!state_.merge.unties_head) return;
    state_.merge.warnings.push_back(
        "the output stores its own lm_head.weight although the base ties it; tie_word_embeddings becomes "
        "false");
  }

  // Every input tensor is merged, copied, or dropped by a rule.
  void AccountForInputs() {
    ResolvedMerge& merge = state_.merge;
    using Place = std::pair<size_t, size_t>;
    std::vector<std::set<Place>> known(merge.models.size());
    for (const ResolvedTensor& tensor : merge.tensors) {
      for (const TensorSource& source : tensor.sources)
        known[source.model].insert({source.place.shard, source.place.index});
    }
    for (const DroppedTensor& dropped : merge.dropped) {
      const TensorPlace& place = merge.models[dropped.model].checkpoint->tensors().at(dropped.tensor);
      known[dropped.model].insert({place.shard, place.index});
    }
    for (size_t m = 0; m < merge.models.size(); ++m) {
      for (const auto& [name, place] : merge.models[m].checkpoint->tensors()) {
        if (known[m].count({place.shard, place.index}) == 0)
          merge.dropped.push_back({m, name, "no output tensor of the recipe takes it"});
      }
    }
  }

  Error WithRecipeFaults(Error error) const {
    if (state_.recipe.faults.empty()) return error;
    error.faults = state_.recipe.faults;
    error.faults.push_back(std::exchange(
        error.message, Format("{}: {} faults", state_.recipe.where, state_.recipe.faults.size() + 1)));
    return error;
  }

  // Every fault found so far; mistyped parameters first, since others may follow from them.
  Failure Verdict(ParameterCheck& check) {
    std::vector<std::string> all = state_.recipe.faults;
    for (const auto& more : {state_.shelf.faults(), check.TakeFaults()})
      all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), state_.faults.begin(), state_.faults.end());
    const Code code = !state_.shelf.faults().empty() ? state_.shelf.code()
                      : state_.unsupported           ? Code::kUnsupported
                                                     : Code::kInvalidInput;
    const std::string advice = state_.incomplete ? " (--missing base takes the base's tensor where a model "
                                                   "lacks it, -i leaves such tensors out, -u "
                                                   "merges the models that have them)"
                                                 : "";
    if (all.size() == 1) return Fail(code, all[0] + advice);
    return Fail(Error{code, Format("{}: {} faults{}", state_.recipe.where, all.size(), advice), all});
  }

  ResolveState state_;
};

}  // namespace

Result<ResolvedMerge> ResolveRecipe(const Recipe& recipe, const ResolveOptions& options, Ledger& ledger) {
  return Resolver(recipe, options, ledger).Run();
}

}  // namespace mergepipe
