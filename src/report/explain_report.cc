#include "report/explain_report.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "planner/decision.h"
#include "recipe/layers.h"

namespace mergepipe {
namespace {

constexpr size_t kShownTensors = 12;

// Where a tensor stands: before all layers, in one, or behind them.
struct LayerPlace {
  enum class Kind { kBefore, kLayer, kBehind };
  Kind kind = Kind::kBehind;
  std::string prefix;
  int64_t layer = 0;
  bool operator<(const LayerPlace& other) const {
    return std::tie(kind, prefix, layer) < std::tie(other.kind, other.prefix, other.layer);
  }
};

LayerPlace PlaceOf(const std::string& tensor) {
  if (const auto split = SplitLayerName(tensor))
    return {LayerPlace::Kind::kLayer, split->prefix, split->layer};
  return {.kind = StandsBeforeLayers(tensor) ? LayerPlace::Kind::kBefore : LayerPlace::Kind::kBehind,
          .prefix = "",
          .layer = 0};
}

std::string PlaceText(const LayerPlace& place) {
  if (place.kind == LayerPlace::Kind::kLayer) return Format("{}.{}", place.prefix, place.layer);
  return place.kind == LayerPlace::Kind::kBefore ? "before the layers" : "behind the layers";
}

Json PlaceJson(const LayerPlace& place) {
  if (place.kind == LayerPlace::Kind::kLayer)
    return {{"place", "layer"}, {"prefix", place.prefix}, {"layer", place.layer}};
  return {{"place", place.kind == LayerPlace::Kind::kBefore ? "before" : "behind"},
          {"prefix", nullptr},
          {"layer", nullptr}};
}

std::map<LayerPlace, ReadShares> ByLayer(const Explanation& explanation) {
  std::map<LayerPlace, ReadShares> layers;
  for (const ExplainedTensor& tensor : explanation.tensors)
    layers[PlaceOf(tensor.name)].Add(tensor.shares);
  return layers;
}

// By model; of the base there is nothing to tell.
std::vector<ReadShares> ByModel(const Explanation& explanation) {
  std::vector<ReadShares> models(explanation.models.size());
  for (const ExplainedTensor& tensor : explanation.tensors) {
    for (const ExplainedSource& source : tensor.sources)
      models[source.model].Add(source.shares);
  }
  return models;
}

// Its part in the error of all that is left out: 0 where that is nothing, and nothing where nobody knows it.
std::optional<double> ErrorShare(const ReadShares& part, const ReadShares& whole) {
  if (whole.error > 0) return part.error / whole.error;
  if (part.left_out_bytes == 0) return 0.0;
  return std::nullopt;
}

Json SharesJson(const ReadShares& part, const ReadShares& whole) {
  const auto error = ErrorShare(part, whole);
  return {{"available_bytes", part.available_bytes},
          {"read_bytes", part.read_bytes},
          {"lossless_skipped_bytes", part.lossless_bytes + part.shared_bytes},
          {"shared_bytes", part.shared_bytes},
          {"left_out_bytes", part.left_out_bytes},
          {"omitted_error_share", error ? Json(*error) : Json()}};
}

std::string SharesLine(const ReadShares& part, const ReadShares& whole, const std::string& name) {
  const auto error = ErrorShare(part, whole);
  return Format("  {:>10} {:>10} {:>10} {:>10} {:>10} {:>9}  {}\n", HumanBytes(part.available_bytes),
                HumanBytes(part.read_bytes), HumanBytes(part.lossless_bytes), HumanBytes(part.shared_bytes),
                HumanBytes(part.left_out_bytes), error ? Format("{:.2f} %", *error * 100) : "-", name);
}

std::string TableHead(const std::string& name) {
  return Format("\n  {:>10} {:>10} {:>10} {:>10} {:>10} {:>9}  {}\n", "available", "read", "lossless",
                "shared", "left out", "of error", name);
}

std::string PercentText(const std::optional<double>& share) {
  return share ? Format("{:.2f} %", *share * 100) : "unknown";
}

std::string BudgetLine(const Explanation& explanation) {
  const BudgetOutcome& budget = explanation.budget;
  const std::string blocks = Format("blocks of {}", HumanBytes(explanation.block_bytes));
  if (!budget.bytes) return Format("  budget   none, {}\n", blocks);
  return Format("  budget   {}, policy {}, {}\n", HumanBytes(*budget.bytes),
                PolicyName(budget.request.policy), blocks);
}

std::string OutcomeText(const Explanation& explanation) {
  const BudgetOutcome& budget = explanation.budget;
  if (budget.complete) return "  error    none: nothing is left out but what changes nothing\n";
  std::string text =
      Format("  error    predicted {} of the update, {} of the weights\n",
             PercentText(budget.predicted.of_update), PercentText(budget.predicted.of_weights));
  if (budget.certificate) {
    text += Format("  proved   at most {:.4g} in L2 norm, and {:.4g} by rounding\n", budget.certificate->l2,
                   budget.certificate->rounding_l2);
  }
  return text + Format("  cut      the first read that was not taken would bring {:.4g} per byte\n",
                       budget.cut_rate);
}

std::string Heading(const Explanation& explanation, const std::string& path) {
  const BudgetOutcome& budget = explanation.budget;
  std::string text =
      Format("{}: {} of {}, {} models, {} tensors\n", path, explanation.saved_plan ? "saved plan" : "output",
             explanation.method, explanation.models.size(), explanation.tensors.size());
  text += BudgetLine(explanation);
  text += Format("  known    {}\n", KnowledgeText(budget.strength));
  text += Format("  reads    {} of {} of experts", HumanBytes(explanation.shares.read_bytes),
                 HumanBytes(explanation.shares.available_bytes));
  if (budget.sample_bytes > 0) text += Format(", and {} of samples", HumanBytes(budget.sample_bytes));
  return text + "\n" + OutcomeText(explanation) +
         Format("  plan     {}\n", explanation.plan_digest.substr(0, 16));
}

std::string ExpertTable(const Explanation& explanation) {
  std::string text = TableHead("expert");
  const auto models = ByModel(explanation);
  for (size_t m = 0; m < models.size(); ++m) {
    if (explanation.models[m].expert)
      text += SharesLine(models[m], explanation.shares, explanation.models[m].name);
  }
  return text + SharesLine(explanation.shares, explanation.shares, "all");
}

std::string LayerTable(const Explanation& explanation) {
  std::string text = TableHead("layer");
  for (const auto& [place, shares] : ByLayer(explanation))
    text += SharesLine(shares, explanation.shares, PlaceText(place));
  return text;
}

// Those that lose most first.
std::vector<const ExplainedTensor*> ByLoss(const Explanation& explanation) {
  std::vector<const ExplainedTensor*> tensors;
  for (const ExplainedTensor& tensor : explanation.tensors) {
    if (tensor.shares.available_bytes > 0) tensors.push_back(&tensor);
  }
  const auto loss = [](const ExplainedTensor* t) {
    return std::tie(t->shares.error, t->shares.left_out_bytes, t->shares.available_bytes);
  };
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const auto* a, const auto* b) { return loss(a) > loss(b); });
  return tensors;
}

// The span over all inputs; one that was found in less than the whole delta shows.
std::string ThresholdsLine(const ExplainedTensor& tensor) {
  if (tensor.thresholds.empty()) return "";
  float least = tensor.thresholds[0].magnitude, most = least;
  bool whole = true;
  for (const ExplainedThreshold& t : tensor.thresholds) {
    least = std::min(least, t.magnitude);
    most = std::max(most, t.magnitude);
    whole = whole && t.of_whole_delta;
  }
  const std::string span = least < most ? Format("{:.4g} to {:.4g}", least, most) : Format("{:.4g}", least);
  return Format("  {:>65}trimmed below {}, found in {}\n", "", span, whole ? "whole deltas" : "what is read");
}

std::string TensorTable(const Explanation& explanation) {
  std::string text = TableHead("tensor");
  const auto tensors = ByLoss(explanation);
  for (size_t i = 0; i < std::min(tensors.size(), kShownTensors); ++i) {
    text += SharesLine(tensors[i]->shares, explanation.shares, tensors[i]->name);
    text += ThresholdsLine(*tensors[i]);
  }
  if (tensors.size() > kShownTensors)
    text += Format("  {:>65}  … and {} more tensors; --json lists all\n", "", tensors.size() - kShownTensors);
  return text;
}

Json ExpertsJson(const Explanation& explanation) {
  Json experts = Json::array();
  const auto models = ByModel(explanation);
  for (size_t m = 0; m < models.size(); ++m) {
    if (!explanation.models[m].expert) continue;
    Json row = SharesJson(models[m], explanation.shares);
    row["model"] = explanation.models[m].name;
    experts.push_back(std::move(row));
  }
  return experts;
}

Json LayersJson(const Explanation& explanation) {
  Json layers = Json::array();
  for (const auto& [place, shares] : ByLayer(explanation)) {
    Json row = SharesJson(shares, explanation.shares);
    row.update(PlaceJson(place));
    layers.push_back(std::move(row));
  }
  return layers;
}

Json TensorsJson(const Explanation& explanation) {
  Json tensors = Json::array();
  for (const ExplainedTensor& tensor : explanation.tensors) {
    Json row = SharesJson(tensor.shares, explanation.shares);
    row["name"] = tensor.name;
    row["thresholds"] = ThresholdsJson(explanation, tensor);
    tensors.push_back(std::move(row));
  }
  return tensors;
}

}  // namespace

std::string KnowledgeText(Strength strength) {
  switch (strength) {
    case Strength::kFull:
      return "all experts are analysed: energies are exact";
    case Strength::kSampled:
      return "experts were sampled: energies are estimates";
    case Strength::kNone:
      return "nothing of the experts beforehand; mergepipe analyze reads them once for all";
  }
  return "";
}

std::optional<double> GainPerByte(double energy, uint64_t bytes) {
  return bytes > 0 ? std::optional<double>(energy / static_cast<double>(bytes)) : std::nullopt;
}

Json ThresholdsJson(const Explanation& explanation, const ExplainedTensor& tensor) {
  Json rows = Json::array();
  for (const ExplainedThreshold& t : tensor.thresholds) {
    rows.push_back({{"model", explanation.models[tensor.sources[t.source].model].name},
                    {"magnitude", t.magnitude},
                    {"equals", t.equals},
                    {"equals_kept", t.equals_kept},
                    {"of_whole_delta", t.of_whole_delta}});
  }
  return rows;
}

Json ExplainReportJson(const Explanation& explanation) {
  const BudgetOutcome& budget = explanation.budget;
  Json report = SharesJson(explanation.shares, explanation.shares);
  report.update({{"kind", explanation.saved_plan ? "plan" : "output"},
                 {"method", explanation.method},
                 {"version", explanation.version},
                 {"plan_digest", explanation.plan_digest},
                 {"block_bytes", explanation.block_bytes},
                 {"budget_bytes", budget.bytes ? Json(*budget.bytes) : Json()},
                 {"policy", PolicyName(budget.request.policy)},
                 {"statistics", StrengthName(budget.strength)},
                 {"sample_read_bytes", budget.sample_bytes},
                 {"complete", budget.complete},
                 {"predicted_deviation", DeviationJson(budget.predicted)},
                 {"certificate", CertificateJson(budget.certificate)},
                 {"cut_rate", budget.cut_rate},
                 {"experts", ExpertsJson(explanation)},
                 {"layers", LayersJson(explanation)},
                 {"tensors", TensorsJson(explanation)}});
  return report;
}

std::string ExplainReportText(const Explanation& explanation, const std::string& path) {
  return Heading(explanation, path) + ExpertTable(explanation) + LayerTable(explanation) +
         TensorTable(explanation);
}

Result<const ExplainedTensor*> FindTensor(const Explanation& explanation, const std::string& name) {
  std::vector<std::string> names;
  for (const ExplainedTensor& tensor : explanation.tensors) {
    if (tensor.name == name) return &tensor;
    names.push_back(tensor.name);
  }
  return Fail(Code::kUsage, Format("there is no output tensor '{}'{}", name, DidYouMean(name, names)));
}

}  // namespace mergepipe
