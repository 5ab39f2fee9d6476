#include <algorithm>

#include "base/text.h"
#include "report/explain_report.h"

namespace mergepipe {
namespace {

const std::string& NameOf(const Explanation& explanation, const ExplainedSource& source) {
  return explanation.models[source.model].name;
}

// What is not left out; the parts are sums of their own, whose rounding may differ.
double EnergyRead(const ReadShares& shares) {
  return std::max(0.0, shares.energy - shares.error);
}

Json Optional(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

Json SourceJson(const Explanation& explanation, const ExplainedTensor& tensor,
                const ExplainedSource& source) {
  const ReadShares& shares = source.shares;
  Json shared = Json::array();
  for (const auto& [holder, blocks] : source.blocks.shared)
    shared.push_back({{"model", NameOf(explanation, tensor.sources[holder])}, {"blocks", blocks}});
  return {{"model", NameOf(explanation, source)},
          {"blocks", source.blocks.all},
          {"read_blocks", source.blocks.read},
          {"lossless_blocks", source.blocks.lossless},
          {"shared_blocks", shared},
          {"left_out_blocks", source.blocks.left_out},
          {"available_bytes", shares.available_bytes},
          {"read_bytes", shares.read_bytes},
          {"lossless_skipped_bytes", shares.lossless_bytes + shares.shared_bytes},
          {"shared_bytes", shares.shared_bytes},
          {"left_out_bytes", shares.left_out_bytes},
          {"read_energy", EnergyRead(shares)},
          {"left_out_energy", shares.error},
          {"read_gain_per_byte",
           Optional(GainPerByte(EnergyRead(shares), shares.read_bytes + shares.shared_bytes))},
          {"left_out_gain_per_byte", Optional(GainPerByte(shares.error, shares.left_out_bytes))}};
}

bool OrdersByGain(Policy policy) {
  return policy == Policy::kGram || policy == Policy::kNorm;
}

std::string PolicyText(Policy policy) {
  switch (policy) {
    case Policy::kGram:
      return "blocks are read in order of gain per byte, in which experts that agree or cancel count "
             "together";
    case Policy::kNorm:
      return "blocks are read in order of energy per byte, each expert on its own";
    case Policy::kUniform:
      return "blocks are read evenly spread over each tensor, whatever they hold";
    case Policy::kFair:
      return "every expert gets the same bytes, its own largest energies first";
    case Policy::kRandom:
      return "blocks are read in a random order that the seed decides";
  }
  return "";
}

std::string OrderText(const BudgetOutcome& budget) {
  if (budget.complete) return "  everything is read but what changes nothing, so no block was weighed\n";
  std::string text = Format("  {}\n", PolicyText(budget.request.policy));
  if (budget.strength == Strength::kNone)
    return text + "  nothing was known of the experts, so no block was worth more than another\n";
  text += OrdersByGain(budget.request.policy) ? "  the order was cut at a gain of "
                                              : "  the first block that was left would bring ";
  text += Format("{:.4g} per byte", budget.cut_rate);
  return text + (budget.strength == Strength::kSampled ? ", by estimates from samples\n" : "\n");
}

std::string CountText(uint64_t blocks) {
  return Format("{} {}", blocks, blocks == 1 ? "block" : "blocks");
}

std::string BlocksText(const Explanation& explanation, const ExplainedTensor& tensor,
                       const ExplainedSource& source) {
  const BlockCounts& blocks = source.blocks;
  std::string text = Format("    read: {} of {}, {} of {}\n", blocks.read, CountText(blocks.all),
                            HumanBytes(source.shares.read_bytes), HumanBytes(source.shares.available_bytes));
  if (blocks.lossless > 0)
    text += Format("    lossless: {}, {}, not read as that changes nothing in the output\n",
                   CountText(blocks.lossless), HumanBytes(source.shares.lossless_bytes));
  for (const auto& [holder, count] : blocks.shared)
    text += Format("    shared: {} with the same bytes as those of {}, which are read once for both\n",
                   CountText(count), NameOf(explanation, tensor.sources[holder]));
  if (blocks.left_out > 0)
    text += Format("    left out: {}, {}, where the base stands in\n", CountText(blocks.left_out),
                   HumanBytes(source.shares.left_out_bytes));
  return text;
}

// How what is left compares with the place where the order was cut.
std::string AgainstCut(double rate, const BudgetOutcome& budget) {
  if (!OrdersByGain(budget.request.policy)) return "";
  if (rate <= budget.cut_rate) return ", no more than where the order was cut";
  return ", counted on its own; together with the other experts it brings less, or the next block did not "
         "fit into the budget";
}

std::string GainText(const ReadShares& shares, const BudgetOutcome& budget) {
  if (shares.energy <= 0) return "";
  std::string text = Format("    energy: {:.4g} in what is read, {:.4g} in what is left out ({:.2f} %)\n",
                            EnergyRead(shares), shares.error, 100 * shares.error / shares.energy);
  if (const auto rate = GainPerByte(EnergyRead(shares), shares.read_bytes + shares.shared_bytes))
    text += Format("    what is read brings {:.4g} per byte on average\n", *rate);
  if (const auto rate = GainPerByte(shares.error, shares.left_out_bytes))
    text += Format("    what is left of this expert here would bring {:.4g} per byte on average{}\n", *rate,
                   AgainstCut(*rate, budget));
  return text;
}

std::string ThresholdText(const ExplainedTensor& tensor, size_t source) {
  std::string text;
  for (const ExplainedThreshold& t : tensor.thresholds) {
    if (t.source != source) continue;
    text += Format("    threshold: magnitudes below {:.6g} are trimmed, found in {}\n", t.magnitude,
                   t.of_whole_delta ? "the whole delta" : "the delta of what is read");
  }
  return text;
}

std::string SourceText(const Explanation& explanation, const ExplainedTensor& tensor, size_t s) {
  const ExplainedSource& source = tensor.sources[s];
  std::string text = Format("\n  {}\n", NameOf(explanation, source));
  if (source.shares.available_bytes == 0) return text + "    always read: no model can stand in for it\n";
  text += BlocksText(explanation, tensor, source);
  if (tensor.merged) text += GainText(source.shares, explanation.budget);
  return text + ThresholdText(tensor, s);
}

}  // namespace

Json WhyJson(const Explanation& explanation, const ExplainedTensor& tensor) {
  Json experts = Json::array();
  for (const ExplainedSource& source : tensor.sources) {
    if (explanation.models[source.model].expert) experts.push_back(SourceJson(explanation, tensor, source));
  }
  return {{"tensor", tensor.name},
          {"merged", tensor.merged},
          {"block_elements", tensor.block_elements},
          {"elements", tensor.elements},
          {"experts", experts},
          {"thresholds", ThresholdsJson(explanation, tensor)}};
}

std::string WhyText(const Explanation& explanation, const ExplainedTensor& tensor) {
  std::string text = tensor.name + "\n";
  if (tensor.elements > 0)
    text = Format("{}: {} {} in blocks of {}\n", tensor.name, tensor.elements,
                  tensor.merged ? "elements" : "bytes", tensor.block_elements);
  bool experts = false;
  for (const ExplainedSource& source : tensor.sources)
    experts = experts || explanation.models[source.model].expert;
  if (!experts) return text + "  no expert has a part in it: it comes from the base alone\n";
  if (!tensor.merged) text += "  it is copied, not merged; experts are read to see whether they agree\n";
  text += OrderText(explanation.budget);
  for (size_t s = 0; s < tensor.sources.size(); ++s) {
    if (explanation.models[tensor.sources[s].model].expert) text += SourceText(explanation, tensor, s);
  }
  return text;
}

}  // namespace mergepipe
