#include "report/explanation.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace {

constexpr uint32_t kInfinityKey = 0x7f800000;
// More than any storage holds; sums of a few stay below 2^64.
constexpr uint64_t kMostBytes = uint64_t{1} << 60;

// Reads fields of a document that nobody vouches for and remembers the first that is not what the format
// says; after that its values mean nothing.
class FieldReader {
 public:
  const Json& Field(const Json& object, const char* key) {
    const auto field = object.find(key);
    if (object.is_object() && field != object.end()) return *field;
    Blame(key);
    return Nothing();
  }
  const Json& List(const Json& object, const char* key) {
    const Json& field = Field(object, key);
    return field.is_array() ? field : (Blame(key), Nothing());
  }
  std::string Text(const Json& object, const char* key) {
    const Json& field = Field(object, key);
    return field.is_string() ? field.get<std::string>() : (Blame(key), "");
  }
  bool Truth(const Json& object, const char* key) {
    const Json& field = Field(object, key);
    return field.is_boolean() ? field.get<bool>() : (Blame(key), false);
  }
  uint64_t Count(const Json& object, const char* key) { return CountOf(Field(object, key), key); }
  double Number(const Json& object, const char* key) { return NumberOf(Field(object, key), key); }
  std::optional<double> NumberOrNull(const Json& object, const char* key) {
    const Json& field = Field(object, key);
    return field.is_null() ? std::nullopt : std::optional<double>(NumberOf(field, key));
  }
  uint64_t CountOf(const Json& value, const char* key) {
    return value.is_number_unsigned() ? value.get<uint64_t>() : (Blame(key), 0);
  }
  // At least 0; JSON has no NaN.
  double NumberOf(const Json& value, const char* key) {
    const double number = value.is_number() ? value.get<double>() : -1;
    return std::isfinite(number) && number >= 0 ? number : (Blame(key), 0);
  }

  void Blame(const std::string& key) {
    if (fault_.empty()) fault_ = Format("{}'{}'", place_, key);
  }
  // What the fields that follow belong to: "tensor 'x': ".
  void Enter(std::string place) { place_ = std::move(place); }
  bool ok() const { return fault_.empty(); }
  const std::string& fault() const { return fault_; }

 private:
  static const Json& Nothing() {
    static const Json kNothing;
    return kNothing;
  }
  std::string place_, fault_;
};

// Runs of blocks with one state, as a mask's row has them, and the bytes that they have in one source.
class BlockRuns {
 public:
  // `unit`: bytes of one element, all passes.
  BlockRuns(const ExplainedTensor& tensor, uint64_t unit) : tensor_(tensor), unit_(unit) {}

  uint64_t blocks() const {
    const uint64_t whole = tensor_.elements / tensor_.block_elements;
    return whole + (tensor_.elements % tensor_.block_elements == 0 ? 0 : 1);
  }
  // Of [begin, end).
  uint64_t Bytes(uint64_t begin, uint64_t end) const {
    const uint64_t last = end == blocks() ? tensor_.elements : end * tensor_.block_elements;
    return (last - begin * tensor_.block_elements) * unit_;
  }
  // Among several blocks only the last of the tensor may be short.
  uint64_t BlocksIn(uint64_t bytes) const {
    const uint64_t block = std::min(tensor_.block_elements, tensor_.elements) * unit_;
    return block == 0 ? 0 : bytes / block + (bytes % block == 0 ? 0 : 1);
  }

 private:
  const ExplainedTensor& tensor_;
  uint64_t unit_;
};

class DecisionReader {
 public:
  DecisionReader(FieldReader& fields, size_t models) : fields_(fields), models_(models) {}

  // `models` by source, `inputs` null where nothing is merged.
  ExplainedTensor Read(const std::string& name, const Json& decision, const std::vector<uint64_t>& models,
                       const Json& inputs) {
    fields_.Enter(Format("tensor '{}': ", name));
    ExplainedTensor tensor{
        .name = name, .merged = inputs.is_array(), .sources = {}, .thresholds = {}, .shares = {}};
    if (!decision.contains("reads")) {  // no expert has a part in it
      for (const uint64_t model : models)
        tensor.sources.push_back({.model = KnownModel(model), .shares = {}, .blocks = {}});
      return tensor;
    }
    tensor.elements = fields_.Count(decision, "elements");
    tensor.block_elements = fields_.Count(decision, "block_elements");
    if (tensor.block_elements == 0 || tensor.block_elements > kMostBytes || tensor.elements > kMostBytes)
      fields_.Blame("block_elements");
    tensor.gathered = decision.contains("gathered") && fields_.Truth(decision, "gathered");
    const Json& reads = fields_.List(decision, "reads");
    if (reads.size() != models.size() || models.empty()) fields_.Blame("reads");
    for (size_t s = 0; s < reads.size() && fields_.ok(); ++s)
      tensor.sources.push_back(ReadSource(reads[s], models[s]));
    const auto mask = decision.find("mask");
    for (size_t s = 1; s < tensor.sources.size() && fields_.ok(); ++s)
      ReadRow(mask == decision.end() ? nullptr : &*mask, s, tensor);
    if (tensor.merged && decision.contains("constants")) ReadConstants(decision, inputs, tensor);
    for (const ExplainedSource& source : tensor.sources) {
      tensor.shares.Add(source.shares);
      if (tensor.shares.available_bytes > kMostBytes) fields_.Blame("reads");
    }
    return tensor;
  }

  // Thresholds of what was read, where none were given.
  void ReadThresholds(const Json& record, const Json& inputs, ExplainedTensor& tensor) {
    for (const Json& row : fields_.List(record, "thresholds")) {
      const size_t source = SourceOf(inputs, fields_.Count(row, "input"), tensor);
      if (!fields_.ok()) return;
      if (row.contains("of")) continue;  // of another kind than trimming
      tensor.thresholds.push_back({.source = source,
                                   .magnitude = static_cast<float>(fields_.Number(row, "magnitude")),
                                   .equals = fields_.Count(row, "equals"),
                                   .equals_kept = fields_.Count(row, "equals_kept"),
                                   .of_whole_delta = tensor.sources[source].shares.left_out_bytes == 0});
    }
  }

 private:
  size_t KnownModel(uint64_t model) {
    return model < models_ ? static_cast<size_t>(model) : (fields_.Blame("models"), 0);
  }

  ExplainedSource ReadSource(const Json& row, uint64_t model) {
    ExplainedSource source;
    source.model = KnownModel(model);
    if (!row.is_array() || row.size() != 5) {
      fields_.Blame("reads");
      return source;
    }
    ReadShares& shares = source.shares;
    shares.available_bytes = fields_.CountOf(row[0], "reads");
    shares.read_bytes = fields_.CountOf(row[1], "reads");
    shares.lossless_bytes = fields_.CountOf(row[2], "reads");
    shares.error = fields_.NumberOf(row[3], "reads");
    shares.energy = fields_.NumberOf(row[4], "reads");
    if (shares.available_bytes > kMostBytes || shares.read_bytes > shares.available_bytes ||
        shares.lossless_bytes > shares.available_bytes - shares.read_bytes)
      fields_.Blame("reads");
    return source;
  }

  // What the mask says about one source; null: all is read.
  void ReadRow(const Json* mask, size_t s, ExplainedTensor& tensor) {
    ExplainedSource& source = tensor.sources[s];
    ReadShares& shares = source.shares;
    if (shares.available_bytes == 0 || tensor.elements == 0) return;
    const BlockRuns runs(tensor, tensor.gathered ? 0 : shares.available_bytes / tensor.elements);
    source.blocks.all = runs.blocks();
    if (!tensor.gathered && shares.available_bytes % tensor.elements != 0) return fields_.Blame("reads");
    if (mask == nullptr) {
      source.blocks.read = runs.blocks();
      if (shares.read_bytes != shares.available_bytes) fields_.Blame("reads");
      return;
    }
    const Json& rows = fields_.List(*mask, "rows");
    if (rows.size() + 1 != tensor.sources.size() || !rows[s - 1].is_array() || rows[s - 1].size() % 2 != 0)
      return fields_.Blame("rows");
    const uint64_t read = AddRuns(rows[s - 1], s, runs, source);
    if (tensor.gathered) {
      shares.left_out_bytes = shares.available_bytes - shares.read_bytes - shares.lossless_bytes;
      return;
    }
    const uint64_t skipped = shares.lossless_bytes;  // with those that are shared
    const bool adds_up = shares.read_bytes == read && skipped >= shares.shared_bytes &&
                         skipped - shares.shared_bytes <= shares.left_out_bytes;
    if (!adds_up) return fields_.Blame("rows");
    shares.lossless_bytes -= shares.shared_bytes;
    shares.left_out_bytes -= shares.lossless_bytes;
    source.blocks.lossless = runs.BlocksIn(shares.lossless_bytes);
    source.blocks.left_out -= std::min(source.blocks.left_out, source.blocks.lossless);
  }

  // Yields the bytes that are read.
  uint64_t AddRuns(const Json& row, size_t s, const BlockRuns& runs, ExplainedSource& source) {
    uint64_t block = 0, read = 0;
    for (size_t i = 0; i < row.size() && fields_.ok(); i += 2) {
      const uint64_t count = fields_.CountOf(row[i], "rows");
      const uint64_t state = fields_.CountOf(row[i + 1], "rows");
      if (count > runs.blocks() - block || state > s + 1 || state == 1) {
        fields_.Blame("rows");
        break;
      }
      const uint64_t bytes = runs.Bytes(block, block + count);
      block += count;
      if (state == 0) {
        source.blocks.left_out += count;
        source.shares.left_out_bytes += bytes;
      } else if (state == s + 1) {
        source.blocks.read += count;
        read += bytes;
      } else {
        source.blocks.shared[static_cast<size_t>(state - 1)] += count;
        source.shares.shared_bytes += bytes;
      }
    }
    if (block != runs.blocks()) fields_.Blame("rows");
    return read;
  }

  void ReadConstants(const Json& decision, const Json& inputs, ExplainedTensor& tensor) {
    const Json& rows = fields_.List(fields_.Field(decision, "constants"), "thresholds");
    for (size_t i = 0; i < rows.size() && fields_.ok(); ++i) {
      const Json& row = rows[i];
      if (!row.is_array() || row.size() != 4) return fields_.Blame("thresholds");
      const uint64_t key = fields_.CountOf(row[0], "thresholds");
      const uint64_t equals = fields_.CountOf(row[1], "thresholds");
      const uint64_t kept = fields_.CountOf(row[2], "thresholds");
      const size_t source = SourceOf(inputs, i, tensor);
      if (key >= kInfinityKey) fields_.Blame("thresholds");
      if (equals == 0 || !fields_.ok()) continue;  // not trimmed
      tensor.thresholds.push_back(
          {source, std::bit_cast<float>(static_cast<uint32_t>(key)), equals, kept, true});
    }
  }

  size_t SourceOf(const Json& inputs, uint64_t input, const ExplainedTensor& tensor) {
    const uint64_t source = input < inputs.size() && inputs.is_array()
                                ? fields_.CountOf(inputs[static_cast<size_t>(input)], "inputs")
                                : tensor.sources.size();
    if (source < tensor.sources.size()) return static_cast<size_t>(source);
    fields_.Blame("inputs");
    return 0;
  }

  FieldReader& fields_;
  size_t models_;
};

std::string OneOf(FieldReader& fields, const Json& json, const char* key,
                  const std::vector<std::string>& words) {
  std::string text = fields.Text(json, key);
  if (std::find(words.begin(), words.end(), text) == words.end()) fields.Blame(key);
  return text;
}

Strength StrengthFrom(const std::string& name) {
  for (const Strength s : {Strength::kSampled, Strength::kFull}) {
    if (name == StrengthName(s)) return s;
  }
  return Strength::kNone;
}

BudgetOutcome ReadBudget(FieldReader& fields, const Json& json) {
  BudgetOutcome budget;
  fields.Enter("budget: ");
  if (!fields.Field(json, "budget_bytes").is_null()) budget.bytes = fields.Count(json, "budget_bytes");
  if (const auto policy = ParsePolicy(OneOf(fields, json, "policy", PolicyNames())))
    budget.request.policy = *policy;
  budget.strength = StrengthFrom(OneOf(fields, json, "statistics", {"none", "sampled", "full"}));
  budget.sample_bytes = fields.Count(json, "sample_read_bytes");
  if (budget.sample_bytes > kMostBytes) fields.Blame("sample_read_bytes");
  budget.complete = fields.Truth(json, "complete");
  budget.lossless_bytes = fields.Count(json, "lossless_skipped_bytes");
  budget.cut_rate = fields.Number(json, "cut_rate");
  const Json& predicted = fields.Field(json, "predicted_deviation");
  budget.predicted = {fields.NumberOrNull(predicted, "relative_to_weights"),
                      fields.NumberOrNull(predicted, "relative_to_update")};
  budget.certificate = {};
  const Json& certificate = fields.Field(json, "certificate");
  if (!certificate.is_null())
    budget.certificate =
        Certificate{fields.Number(certificate, "l2"), fields.Number(certificate, "rounding_l2")};
  return budget;
}

std::vector<ExplainedModel> ReadModels(FieldReader& fields, const Json& names, const Json& roles) {
  std::vector<ExplainedModel> models;
  fields.Enter("models: ");
  if (names.size() != roles.size()) fields.Blame("number");
  for (size_t m = 0; m < names.size() && fields.ok(); ++m) {
    const bool expert = OneOf(fields, roles[m], "role", {"base", "expert"}) == "expert";
    models.push_back({fields.Text(names[m], "name"), expert});
  }
  return models;
}

Result<Explanation> Complete(Explanation explanation, FieldReader& fields) {
  std::sort(explanation.tensors.begin(), explanation.tensors.end(),
            [](const ExplainedTensor& a, const ExplainedTensor& b) { return a.name < b.name; });
  fields.Enter("tensors: ");
  for (const ExplainedTensor& tensor : explanation.tensors) {
    explanation.shares.Add(tensor.shares);
    if (explanation.shares.available_bytes > kMostBytes) {
      fields.Blame("reads");
      break;
    }
  }
  if (!fields.ok())
    return Fail(Code::kInvalidInput, Format("{} is missing or is not what the format says", fields.fault()));
  return explanation;
}

// Models by source: numbers in a list, or under a key of its objects.
std::vector<uint64_t> ModelsOf(FieldReader& fields, const Json& list, const char* key) {
  std::vector<uint64_t> models;
  for (const Json& entry : list)
    models.push_back(key == nullptr ? fields.CountOf(entry, "models") : fields.Count(entry, key));
  return models;
}

}  // namespace

void ReadShares::Add(const ReadShares& other) {
  available_bytes += other.available_bytes;
  read_bytes += other.read_bytes;
  lossless_bytes += other.lossless_bytes;
  shared_bytes += other.shared_bytes;
  left_out_bytes += other.left_out_bytes;
  error += other.error;
  energy += other.energy;
}

Result<Explanation> ExplanationOfPlan(const Json& plan) {
  FieldReader fields;
  Explanation explanation{.saved_plan = true,
                          .method = fields.Text(plan, "method"),
                          .plan_digest = fields.Text(plan, "plan_digest"),
                          .version = fields.Text(plan, "version"),
                          .block_bytes = fields.Count(fields.Field(plan, "options"), "block_bytes"),
                          .budget = ReadBudget(fields, fields.Field(plan, "budget")),
                          .models = {},
                          .tensors = {},
                          .shares = {}};
  fields.Enter("");
  const Json& models = fields.List(plan, "models");
  explanation.models = ReadModels(fields, models, models);
  DecisionReader reader(fields, explanation.models.size());
  fields.Enter("");
  for (const Json& tensor : fields.List(plan, "tensors")) {
    if (!fields.ok()) break;
    fields.Enter("tensors: ");
    const auto inputs = tensor.find("inputs");
    const auto sources = ModelsOf(fields, fields.List(tensor, "models"), nullptr);
    explanation.tensors.push_back(
        reader.Read(fields.Text(tensor, "name"), tensor, sources, inputs == tensor.end() ? Json() : *inputs));
  }
  return Complete(std::move(explanation), fields);
}

Result<Explanation> ExplanationOfManifest(const Json& manifest) {
  FieldReader fields;
  const Json& core = fields.Field(manifest, "core");
  Explanation explanation{.saved_plan = false,
                          .method = fields.Text(core, "method"),
                          .plan_digest = fields.Text(core, "plan_digest"),
                          .version = fields.Text(core, "version"),
                          .block_bytes = fields.Count(core, "block_bytes"),
                          .budget = ReadBudget(fields, fields.Field(core, "budget")),
                          .models = {},
                          .tensors = {},
                          .shares = {}};
  fields.Enter("");
  const Json& names = fields.List(fields.Field(manifest, "envelope"), "models");
  explanation.models = ReadModels(fields, names, fields.List(core, "inputs"));
  DecisionReader reader(fields, explanation.models.size());
  fields.Enter("");
  for (const Json& tensor : fields.List(core, "tensors")) {
    if (!fields.ok()) break;
    fields.Enter("tensors: ");
    const auto found = tensor.find("inputs");
    const Json inputs = found == tensor.end() ? Json() : *found;
    const auto sources = ModelsOf(fields, fields.List(tensor, "sources"), "input");
    ExplainedTensor& read = explanation.tensors.emplace_back(
        reader.Read(fields.Text(tensor, "name"), fields.Field(tensor, "decision"), sources, inputs));
    if (fields.ok() && read.thresholds.empty()) reader.ReadThresholds(tensor, inputs, read);
  }
  return Complete(std::move(explanation), fields);
}

}  // namespace mergepipe
