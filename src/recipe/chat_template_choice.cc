#include "recipe/chat_template_choice.h"

#include <algorithm>

#include "format/chat_template.h"

namespace mergepipe {
namespace {

constexpr size_t kLeastTemplateLength = 20;

std::string Stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

struct Candidate {
  std::string text;
  size_t models = 0;
};

std::optional<std::string> MostCommon(ResolveState& state, const std::string& where) {
  std::vector<Candidate> candidates;  // in order of the models
  for (const ResolvedModel& model : state.shelf.models()) {
    const auto found = ChatTemplateOf(*model.checkpoint);
    if (!found) state.faults.push_back(found.error().message);
    if (!found || !*found) continue;
    const std::string text = Stripped(**found);
    if (text.empty()) continue;
    auto known = std::find_if(candidates.begin(), candidates.end(),
                              [&](const Candidate& candidate) { return candidate.text == text; });
    if (known == candidates.end()) known = candidates.insert(candidates.end(), {text, 0});
    ++known->models;
  }
  if (candidates.empty()) {
    state.merge.warnings.push_back(
        Format("{}: chat_template is 'auto', but no model has a chat template; none is written", where));
    return std::nullopt;
  }
  const auto most =
      std::max_element(candidates.begin(), candidates.end(),
                       [](const Candidate& a, const Candidate& b) { return a.models < b.models; });
  return most->text;
}

// A template is of use beside a tokenizer only.
void CheckDonor(ResolveState& state, const std::string& where) {
  const Checkpoint& donor = state.CheckpointOf(state.merge.donor);
  const std::string& name = state.NameOf(state.merge.donor);
  if (donor.is_single_file()) {
    state.faults.push_back(
        Format("{}: chat_template needs a model with a tokenizer, but '{}' is one file; name its folder",
               where, name));
    return;
  }
  const auto tokenizer = donor.ReadSideFile(kTokenizerConfigName);
  if (tokenizer && !*tokenizer && state.merge.chat_template) {
    state.merge.warnings.push_back(Format("{}: '{}' has no {}; the chat template is written to {} alone",
                                          where, name, kTokenizerConfigName, kTemplateName));
  }
}

}  // namespace

void ChooseChatTemplate(ResolveState& state) {
  if (!state.recipe.chat_template) return;
  const auto& [text, at] = *state.recipe.chat_template;
  const std::string where = state.At(at);
  if (text == "auto") {
    state.merge.chat_template = MostCommon(state, where);
  } else if (auto known = BuiltInTemplate(text)) {
    state.merge.chat_template = std::move(known);
  } else if (text.size() >= kLeastTemplateLength && text.find('{') != std::string::npos) {
    state.merge.chat_template = text;
  } else {
    const auto names = BuiltInTemplateNames();
    state.faults.push_back(Format(
        "{}: chat_template '{}' is neither auto, nor a known name ({}){}, nor a Jinja template (which has "
        "at least {} characters and a '{{')",
        where, text, Join(names, ", "), DidYouMean(text, names), kLeastTemplateLength));
  }
  CheckDonor(state, where);
}

}  // namespace mergepipe
