#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "methods/method.h"
#include "recipe/recipe.h"
#include "recipe/settings.h"

namespace mergepipe {
namespace {

constexpr size_t kMaxNodes = 200'000;
constexpr size_t kMaxDepth = 32;
constexpr uint64_t kMaxLayers = 1'000'000'000;
constexpr uint64_t kMaxCount = 1u << 24;

const std::vector<std::string> kTopKeys = {
    "merge_method", "base_model", "models",           "slices",    "modules",       "parameters", "dtype",
    "out_dtype",    "budget",     "tokenizer_source", "tokenizer", "chat_template", "name"};
const std::vector<std::string> kModelKeys = {"model", "parameters"};
const std::vector<std::string> kSourceKeys = {"model", "layer_range", "parameters"};
const std::vector<std::string> kSliceKeys = {"sources", "base_model", "parameters", "residual_weight"};
const std::vector<std::string> kModuleKeys = {"models", "slices", "parameters"};
const std::vector<std::string> kRefKeys = {"model", "lora", "override_architecture"};
const std::vector<std::string> kPathKeys = {"path", "revision"};
const std::vector<std::string> kEntryKeys = {"filter", "value"};
const std::vector<std::string> kTokenizerKeys = {"source", "tokens", "pad_to_multiple_of"};
const std::vector<std::string> kTokenKeys = {"source", "force"};
const std::vector<std::string> kTokenSourceKeys = {"kind", "model", "token", "token_id"};
const std::vector<std::string> kTokenKinds = {"model_token", "zero"};

/// Walks the YAML tree and collects every fault instead of stopping at the first.
class RecipeReader {
 public:
  RecipeReader(std::string where, int first_line) : where_(std::move(where)), first_line_(first_line) {}

  Result<Recipe> Read(const std::string& text) {
    std::vector<YAML::Node> documents;
    try {
      documents = YAML::LoadAll(text);
    } catch (const YAML::Exception& error) {
      return Fail(Code::kUsage, Format("{}:{}:{}: is not valid YAML: {}", where_,
                                       error.mark.line + first_line_, error.mark.column + 1, error.msg));
    }
    std::erase_if(documents, [](const YAML::Node& document) { return document.IsNull(); });
    if (documents.empty()) return Fail(Code::kUsage, Format("{}: the recipe is empty", where_));
    if (documents.size() > 1)
      return Fail(Code::kUnsupported,
                  Format("{}: holds {} YAML documents; only merge and plan take recipes of several stages",
                         where_, documents.size()));
    if (!documents[0].IsMap())
      return Fail(Code::kUsage,
                  Format("{}: a recipe is a mapping of keys such as merge_method and models", where_));
    recipe_.at = PlaceOf(documents[0]);
    CheckTree(documents[0], 0);
    if (faults_.empty()) ExpandMergeKeys(documents[0], 0);
    if (faults_.empty()) ReadTop(documents[0]);
    recipe_.where = where_;
    recipe_.text = text;
    if (faults_.empty()) return recipe_;
    faults_.insert(faults_.begin(), recipe_.faults.begin(), recipe_.faults.end());
    if (faults_.size() == 1) return Fail(code_, faults_.front());
    return Fail(Error{code_, Format("{}: the recipe has {} faults", where_, faults_.size()), faults_});
  }

 private:
  RecipePlace PlaceOf(const YAML::Node& node) const {
    const YAML::Mark mark = node.Mark();
    return {mark.line + first_line_, mark.column + 1};
  }

  // Duplicate keys (where YAML libraries disagree which one counts), merge keys, and trees too large to be a
  // recipe.
  void CheckTree(const YAML::Node& node, size_t depth) {
    if (++nodes_ > kMaxNodes || depth > kMaxDepth) {
      if (!too_large_) Fault(node, "the recipe is too large or too deeply nested");
      too_large_ = true;
      return;
    }
    if (node.IsSequence()) {
      for (const auto& item : node)
        CheckTree(item, depth + 1);
    }
    if (!node.IsMap()) return;
    std::set<std::string> seen;
    for (const auto& pair : node) {
      if (!pair.first.IsScalar()) {
        Fault(pair.first, "a key is not plain text");
        continue;
      }
      const std::string key = pair.first.Scalar();
      if (!seen.insert(key).second) Fault(pair.first, Format("the key '{}' stands here twice", key));
      CheckTree(pair.second, depth + 1);
    }
  }

  // `<<: *anchor` (or a list of them) adds the keys of another mapping that this one does not have itself.
  void ExpandMergeKeys(YAML::Node node, size_t depth) {
    if (depth > kMaxDepth) return;
    if (node.IsMap() && node["<<"]) {
      const YAML::Node merged = node["<<"];
      node.remove("<<");
      if (merged.IsMap()) AddMissingKeys(node, merged, depth);
      for (size_t i = 0; merged.IsSequence() && i < merged.size(); ++i)
        AddMissingKeys(node, merged[i], depth);
    }
    if (!node.IsMap() && !node.IsSequence()) return;
    for (auto item : node)
      ExpandMergeKeys(node.IsMap() ? item.second : YAML::Node(item), depth + 1);
  }

  void AddMissingKeys(YAML::Node node, const YAML::Node& from, size_t depth) {
    if (!from.IsMap()) return Fault(from, "a merge key ('<<') needs a mapping");
    ExpandMergeKeys(from, depth + 1);
    for (const auto& pair : from) {
      if (!node[pair.first.Scalar()]) node[pair.first.Scalar()] = pair.second;
    }
  }

  void ReadTop(const YAML::Node& top) {
    CheckKeys(top, kTopKeys, "");
    recipe_.merge_method = ReadText(top, "merge_method").value_or("");
    if (recipe_.merge_method.empty() && faults_.empty()) Fault(top, "'merge_method' is missing");
    if (Has(top, "base_model")) recipe_.base_model = ReadRef(top["base_model"]);
    recipe_.dtype = ReadText(top, "dtype");
    recipe_.out_dtype = ReadText(top, "out_dtype");
    recipe_.budget = ReadText(top, "budget");
    recipe_.parameters = ReadParameters(top);
    ReadTokenizer(top);
    ReadName(top);
    if (Has(top, "models")) recipe_.models = ReadInputs(top["models"], "models", /*ranged=*/false);
    if (Has(top, "slices")) recipe_.slices = ReadSlices(top["slices"]);
    if (Has(top, "modules")) ReadModules(top["modules"]);
    const int forms = !recipe_.models.empty() + !recipe_.slices.empty() + !recipe_.modules.empty();
    if (forms != 1 && faults_.empty()) {
      Fault(top, Format("exactly one of 'models', 'slices' and 'modules' must be given and not empty; {} are",
                        forms));
    }
  }

  void ReadName(const YAML::Node& top) {
    const auto name = ReadText(top, "name");
    if (!name) return;
    if (name->empty() || name->find_first_of("@+") != std::string::npos)
      Fault(top["name"],
            Format("'{}' can not be named by another recipe: a name is not empty and has no '@' or '+'",
                   *name));
    recipe_.name = *name;
    recipe_.name_at = PlaceOf(top["name"]);
  }

  void ReadTokenizer(const YAML::Node& top) {
    if (Has(top, "tokenizer") && Has(top, "tokenizer_source"))
      Fault(top["tokenizer"], "'tokenizer' and 'tokenizer_source' exclude each other");
    if (Has(top, "tokenizer_source")) {
      recipe_.tokenizer.emplace().at = PlaceOf(top["tokenizer_source"]);
      ReadTokenizerSource(top["tokenizer_source"]);
    } else if (Has(top, "tokenizer") && ExpectMap(top["tokenizer"], "'tokenizer'")) {
      const YAML::Node node = top["tokenizer"];
      recipe_.tokenizer.emplace().at = PlaceOf(node);
      CheckKeys(node, kTokenizerKeys, "in 'tokenizer'");
      if (Has(node, "source")) ReadTokenizerSource(node["source"]);
      if (Has(node, "tokens")) ReadTokens(node["tokens"]);
      if (Has(node, "pad_to_multiple_of"))
        recipe_.tokenizer->pad_to_multiple_of =
            ReadCount(node["pad_to_multiple_of"], "pad_to_multiple_of", 1);
    }
    const auto chat = ReadText(top, "chat_template");
    if (chat && !chat->empty()) recipe_.chat_template = {*chat, PlaceOf(top["chat_template"])};
  }

  void ReadTokenizerSource(const YAML::Node& node) {
    TokenizerSpec& spec = *recipe_.tokenizer;
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    if (text == "union" || text == "base") {
      spec.source = text == "union" ? TokenizerSpec::Source::kUnion : TokenizerSpec::Source::kBase;
    } else {
      spec.source = TokenizerSpec::Source::kModel;
      spec.model = ReadRef(node);
    }
  }

  void ReadTokens(const YAML::Node& node) {
    if (!ExpectMap(node, "'tokens'")) return;
    for (const auto& pair : node) {
      TokenSpec token{.token = pair.first.Scalar(), .at = PlaceOf(pair.first)};
      const std::string context = Format("token '{}'", token.token);
      if (!ExpectMap(pair.second, context)) continue;
      CheckKeys(pair.second, kTokenKeys, "in " + context);
      if (const auto force = ReadText(pair.second, "force")) {
        const auto value = ConvertScalar({.name = "force", .type = ParamType::kBool}, *force);
        if (!value) Fault(pair.second["force"], Format("'force' is true or false, not '{}'", *force));
        token.force = value && *value != 0;
      }
      if (Has(pair.second, "source")) ReadTokenSource(pair.second["source"], context, token);
      recipe_.tokenizer->tokens.push_back(std::move(token));
    }
  }

  // A model, {kind: model_token, …} or {kind: zero}.
  void ReadTokenSource(const YAML::Node& node, const std::string& context, TokenSpec& token) {
    if (!node.IsMap() || !Has(node, "kind")) {
      if (node.IsMap() && !Has(node, "model"))
        return Fault(node, Format("the source of {} has no 'kind'; it is one of {}", context,
                                  Join(kTokenKinds, ", ")));
      token.kind = TokenSpec::Kind::kModel;
      token.model = ReadRef(node);
      return;
    }
    CheckKeys(node, kTokenSourceKeys, Format("in the source of {}", context));
    const std::string kind = ReadText(node, "kind").value_or("");
    if (kind == "zero") {
      token.kind = TokenSpec::Kind::kZero;
    } else if (kind == "model_token") {
      ReadModelToken(node, context, token);
    } else {
      Fault(node["kind"], Format("the source of {} has the kind '{}', which is none of {}{}", context, kind,
                                 Join(kTokenKinds, ", "), DidYouMean(kind, kTokenKinds)));
    }
  }

  void ReadModelToken(const YAML::Node& node, const std::string& context, TokenSpec& token) {
    token.kind = TokenSpec::Kind::kModelToken;
    if (Has(node, "model")) {
      token.model = ReadRef(node["model"]);
    } else {
      Fault(node, Format("the source of {} has no 'model'", context));
    }
    token.of_token = ReadText(node, "token");
    if (Has(node, "token_id")) token.of_id = ReadCount(node["token_id"], "token_id", 0);
    if (Has(node, "token") == Has(node, "token_id"))
      Fault(node, Format("the source of {} needs exactly one of 'token' and 'token_id'", context));
  }

  std::optional<uint64_t> ReadCount(const YAML::Node& node, const char* key, uint64_t least) {
    const auto count = ParseUnsigned(node.IsScalar() ? node.Scalar() : "");
    if (count && *count >= least && *count <= kMaxCount) return *count;
    Fault(node, Format("'{}' is a whole number from {} to {}", key, least, kMaxCount));
    return std::nullopt;
  }

  std::vector<SliceSpec> ReadSlices(const YAML::Node& node) {
    std::vector<SliceSpec> slices;
    if (!ExpectList(node, "slices")) return slices;
    for (const auto& item : node) {
      SliceSpec slice;
      slice.at = PlaceOf(item);
      if (!ExpectMap(item, "a slice")) continue;
      CheckKeys(item, kSliceKeys, "in a slice");
      if (!Has(item, "sources") || item["sources"].size() == 0) Fault(item, "a slice has no 'sources'");
      if (Has(item, "sources")) slice.sources = ReadInputs(item["sources"], "sources", /*ranged=*/true);
      if (Has(item, "residual_weight")) Ignored(item["residual_weight"], "residual_weight");
      if (Has(item, "base_model")) slice.base_model = ReadRef(item["base_model"]);
      slice.parameters = ReadParameters(item);
      slices.push_back(std::move(slice));
    }
    return slices;
  }

  void ReadModules(const YAML::Node& node) {
    if (!ExpectMap(node, "'modules'")) return;
    for (const auto& pair : node) {
      ModuleSpec module;
      module.at = PlaceOf(pair.first);
      if (!ExpectMap(pair.second, "a module")) continue;
      CheckKeys(pair.second, kModuleKeys, Format("in module '{}'", pair.first.Scalar()));
      if (Has(pair.second, "models"))
        module.models = ReadInputs(pair.second["models"], "models", /*ranged=*/false);
      if (Has(pair.second, "slices")) module.slices = ReadSlices(pair.second["slices"]);
      if (module.models.empty() == module.slices.empty()) {
        Fault(pair.first,
              Format("module '{}' needs exactly one of 'models' and 'slices'", pair.first.Scalar()));
      }
      module.parameters = ReadParameters(pair.second);
      recipe_.modules.emplace_back(pair.first.Scalar(), std::move(module));
    }
  }

  std::vector<InputSpec> ReadInputs(const YAML::Node& node, const std::string& key, bool ranged) {
    std::vector<InputSpec> inputs;
    if (!ExpectList(node, key)) return inputs;
    for (const auto& item : node) {
      InputSpec input;
      input.at = PlaceOf(item);
      if (!ExpectMap(item, Format("an entry of '{}'", key))) continue;
      CheckKeys(item, ranged ? kSourceKeys : kModelKeys, Format("in '{}'", key));
      if (Has(item, "model")) {
        input.model = ReadRef(item["model"]);
      } else {
        Fault(item, Format("an entry of '{}' has no 'model'", key));
      }
      if (ranged) input.layer_range = ReadRange(item);
      input.parameters = ReadParameters(item);
      inputs.push_back(std::move(input));
    }
    return inputs;
  }

  std::optional<std::pair<int64_t, int64_t>> ReadRange(const YAML::Node& item) {
    if (!Has(item, "layer_range")) {
      Fault(item, "a source has no 'layer_range'");
      return std::nullopt;
    }
    const YAML::Node node = item["layer_range"];
    if (!node.IsSequence() || node.size() != 2 || !node[0].IsScalar() || !node[1].IsScalar()) {
      Fault(node, "'layer_range' is a list of two whole numbers, [first, end)");
      return std::nullopt;
    }
    const auto first = ParseUnsigned(node[0].Scalar());
    const auto end = ParseUnsigned(node[1].Scalar());
    if (!first || !end || *end > kMaxLayers) {
      Fault(node, "'layer_range' is a list of two whole numbers, [first, end)");
      return std::nullopt;
    }
    if (*end <= *first) Fault(node, Format("'layer_range' [{}, {}) selects no layer", *first, *end));
    return std::pair(static_cast<int64_t>(*first), static_cast<int64_t>(*end));
  }

  ModelRef ReadRef(const YAML::Node& node) {
    ModelRef ref;
    if (node.IsScalar()) {
      ref = SplitRef(node, node.Scalar());
    } else if (node.IsMap()) {
      CheckKeys(node, kRefKeys, "in a model reference");
      if (!Has(node, "model")) Fault(node, "a model reference has no 'model'");
      if (Has(node, "model")) ReadPath(node["model"], &ref.path, &ref.revision);
      ref.override_architecture = ReadText(node, "override_architecture").value_or("");
      std::string lora_revision;
      if (Has(node, "lora")) ReadPath(node["lora"], &ref.lora, &lora_revision);
      if (!lora_revision.empty()) ref.lora += "@" + lora_revision;
    } else {
      Fault(node, "a model is a text 'path[@revision][+lora]' or a mapping");
    }
    ref.at = PlaceOf(node);
    if (ref.path.empty() && faults_.empty()) Fault(node, "a model has an empty path");
    return ref;
  }

  void ReadPath(const YAML::Node& node, std::string* path, std::string* revision) {
    if (node.IsScalar()) {
      *path = node.Scalar();
    } else if (node.IsMap()) {
      CheckKeys(node, kPathKeys, "in a model path");
      *path = ReadText(node, "path").value_or("");
      *revision = ReadText(node, "revision").value_or("");
    } else {
      Fault(node, "a model path is a text or a mapping with 'path' and 'revision'");
    }
  }

  ModelRef SplitRef(const YAML::Node& node, const std::string& text) {
    ModelRef ref;
    const size_t plus = text.find('+');
    const std::string model = text.substr(0, plus);
    if (plus != std::string::npos) ref.lora = text.substr(plus + 1);
    const size_t at = model.find('@');
    ref.path = model.substr(0, at);
    if (at != std::string::npos) ref.revision = model.substr(at + 1);
    const bool splits_further = ref.lora.find('+') != std::string::npos ||
                                ref.revision.find('@') != std::string::npos ||
                                std::count(ref.lora.begin(), ref.lora.end(), '@') > 1;
    if (splits_further) {
      Fault(node, Format("'{}' is no model reference: at most one '+' and one '@' in each part (write "
                         "{{model: {{path: …}}}} for paths that hold them)",
                         text));
    }
    return ref;
  }

  Parameters ReadParameters(const YAML::Node& owner) {
    Parameters parameters;
    if (!Has(owner, "parameters")) return parameters;
    const YAML::Node node = owner["parameters"];
    if (!ExpectMap(node, "'parameters'")) return parameters;
    for (const auto& pair : node) {
      Setting setting = ReadSetting(pair.second, pair.first.Scalar());
      setting.at = PlaceOf(pair.first);
      parameters[pair.first.Scalar()] = std::move(setting);
    }
    return parameters;
  }

  Setting ReadSetting(const YAML::Node& node, const std::string& name) {
    Setting setting;
    const bool conditional =
        node.IsSequence() && node.size() > 0 &&
        std::any_of(node.begin(), node.end(), [](const YAML::Node& n) { return n.IsMap(); });
    if (node.IsMap()) {
      setting.entries.push_back(ReadEntry(node, name));
    } else if (conditional) {
      for (const auto& item : node) {
        if (ExpectMap(item, Format("an entry of the conditional list '{}'", name)))
          setting.entries.push_back(ReadEntry(item, name));
      }
    } else {
      setting.entries.push_back({std::nullopt, ReadValue(node, name), PlaceOf(node)});
    }
    return setting;
  }

  Setting::Entry ReadEntry(const YAML::Node& node, const std::string& name) {
    Setting::Entry entry;
    entry.at = PlaceOf(node);
    CheckKeys(node, kEntryKeys, Format("in a conditional entry of '{}'", name));
    if (Has(node, "filter")) entry.filter = ReadText(node, "filter");
    if (entry.filter == "*") entry.filter.reset();
    if (Has(node, "value")) {
      entry.value = ReadValue(node["value"], name);
    } else {
      Fault(node, Format("a conditional entry of '{}' has no 'value'", name));
    }
    return entry;
  }

  SettingValue ReadValue(const YAML::Node& node, const std::string& name) {
    SettingValue value;
    value.is_list = node.IsSequence();
    if (node.IsScalar()) {
      value.anchors.push_back(node.Scalar());
    } else if (node.IsSequence()) {
      for (const auto& item : node) {
        if (item.IsScalar()) {
          value.anchors.push_back(item.Scalar());
        } else {
          Fault(item, Format("'{}' mixes values and other things in one list", name));
        }
      }
    } else {
      Fault(node,
            Format("'{}' has no value; write a number, a list of numbers, or a list of {{filter, value}}",
                   name));
    }
    return value;
  }

  static bool Has(const YAML::Node& node, const char* key) { return node[key] && !node[key].IsNull(); }

  std::optional<std::string> ReadText(const YAML::Node& node, const char* key) {
    if (!Has(node, key)) return std::nullopt;
    if (!node[key].IsScalar()) {
      Fault(node[key], Format("'{}' must be a text", key));
      return std::nullopt;
    }
    return node[key].Scalar();
  }

  bool ExpectMap(const YAML::Node& node, const std::string& what) {
    if (!node.IsMap()) Fault(node, Format("{} must be a mapping", what));
    return node.IsMap();
  }
  bool ExpectList(const YAML::Node& node, const std::string& key) {
    if (!node.IsSequence()) Fault(node, Format("'{}' must be a list", key));
    return node.IsSequence();
  }

  void CheckKeys(const YAML::Node& node, const std::vector<std::string>& known, const std::string& context) {
    for (const auto& pair : node) {
      const std::string key = pair.first.Scalar();
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      Typo(pair.first, Format("unknown key '{}'{}{}{}", key, context.empty() ? "" : " ", context,
                              DidYouMean(key, known)));
    }
  }

  void Fault(const YAML::Node& node, const std::string& what) {
    const RecipePlace place = PlaceOf(node);
    faults_.push_back(Format("{}:{}:{}: {}", where_, place.line, place.column, what));
  }
  // A fault that leaves the rest of the recipe readable, so that other faults can be told along with it.
  void Typo(const YAML::Node& node, const std::string& what) {
    const RecipePlace place = PlaceOf(node);
    recipe_.faults.push_back(Format("{}:{}:{}: {}", where_, place.line, place.column, what));
  }
  void Ignored(const YAML::Node& node, const std::string& key) {
    const RecipePlace place = PlaceOf(node);
    recipe_.warnings.push_back(
        Format("{}:{}:{}: '{}' has no meaning here and is ignored", where_, place.line, place.column, key));
  }
  void Unsupported(const YAML::Node& node, const std::string& what) {
    if (faults_.empty()) code_ = Code::kUnsupported;
    Fault(node, what);
  }

  std::string where_;
  int first_line_;
  Recipe recipe_;
  Code code_ = Code::kUsage;
  std::vector<std::string> faults_;
  size_t nodes_ = 0;
  bool too_large_ = false;
};

void EmitScalar(YAML::Emitter& out, const std::string& key, const std::string& value) {
  out << YAML::Key << key << YAML::Value << value;
}

}  // namespace

std::string ModelRef::Text() const {
  return path + (revision.empty() ? "" : "@" + revision) + (lora.empty() ? "" : "+" + lora);
}

Result<Recipe> ParseRecipe(const std::string& text, const std::string& where, int first_line) {
  return RecipeReader(where, first_line).Read(text);
}

std::vector<const ModelRef*> ModelRefs(const Recipe& recipe) {
  std::vector<const ModelRef*> refs;
  const auto take_inputs = [&](const std::vector<InputSpec>& inputs) {
    for (const InputSpec& input : inputs)
      refs.push_back(&input.model);
  };
  const auto take_slices = [&](const std::vector<SliceSpec>& slices) {
    for (const SliceSpec& slice : slices) {
      if (slice.base_model) refs.push_back(&*slice.base_model);
      take_inputs(slice.sources);
    }
  };
  if (recipe.base_model) refs.push_back(&*recipe.base_model);
  take_inputs(recipe.models);
  take_slices(recipe.slices);
  for (const auto& [name, module] : recipe.modules) {
    take_inputs(module.models);
    take_slices(module.slices);
  }
  return refs;
}

Result<std::string> RecipeFromFlags(const RecipeFlags& flags) {
  const Method* method = FindMethod(flags.method);
  const bool weighted =
      method != nullptr && std::any_of(method->params.begin(), method->params.end(),
                                       [](const ParamSpec& p) { return p.name == "weight"; });
  YAML::Emitter out;
  out << YAML::BeginMap;
  EmitScalar(out, "merge_method", flags.method);
  if (!flags.base.empty()) EmitScalar(out, "base_model", flags.base);
  out << YAML::Key << "models" << YAML::Value << YAML::BeginSeq;
  for (const std::string& expert : flags.experts) {
    const size_t colon = expert.rfind(':');
    const bool has_weight =
        colon != std::string::npos && ParseDouble(std::string_view(expert).substr(colon + 1)).has_value();
    if (has_weight && method != nullptr && !weighted)
      return Fail(Code::kUsage, Format("--expert {}: the method '{}' has no weights", expert, flags.method));
    out << YAML::BeginMap;
    EmitScalar(out, "model", has_weight ? expert.substr(0, colon) : expert);
    if (has_weight) {
      out << YAML::Key << "parameters" << YAML::Value << YAML::BeginMap;
      EmitScalar(out, "weight", expert.substr(colon + 1));
      out << YAML::EndMap;
    }
    out << YAML::EndMap;
  }
  out << YAML::EndSeq;
  if (!flags.settings.empty()) {
    out << YAML::Key << "parameters" << YAML::Value << YAML::BeginMap;
    for (const std::string& setting : flags.settings) {
      const size_t equals = setting.find('=');
      if (equals == std::string::npos || equals == 0)
        return Fail(Code::kUsage, Format("--set {}: write key=value", setting));
      try {
        out << YAML::Key << setting.substr(0, equals) << YAML::Value
            << YAML::Load(setting.substr(equals + 1));
      } catch (const YAML::Exception& error) {
        return Fail(Code::kUsage, Format("--set {}: the value is not valid YAML: {}", setting, error.msg));
      }
    }
    out << YAML::EndMap;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace mergepipe
