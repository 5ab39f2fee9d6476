#include "report/merge_report.h"

#include <map>

#include "base/text.h"
#include "planner/fetched.h"
#include "report/budget_report.h"

namespace mergepipe {
namespace {

std::string CountsText(const ResolvedMerge& merge) {
  const Json counts = TensorCounts(merge);
  return Format("{} merged, {} copied, {} dropped", counts["merged"].get<size_t>(),
                counts["copied"].get<size_t>(), counts["dropped"].get<size_t>());
}

size_t ResidentTensors(const Plan& plan) {
  size_t count = 0;
  for (const TensorPlan& tensor : plan.tensors)
    count += tensor.resident ? 1 : 0;
  return count;
}

// Bytes that each model is asked for.
std::vector<uint64_t> BytesByModel(const Plan& plan) {
  std::vector<uint64_t> bytes(plan.merge->models.size(), 0);
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const ResolvedTensor& tensor = plan.merge->tensors[t];
    const auto add = [&](size_t model, uint64_t, uint64_t count) {
      bytes[model] += count * plan.tensors[t].passes();
    };
    for (size_t s = 0; s < tensor.sources.size(); ++s) {
      for (const ElementRun& run : plan.masks[t].RunsRead(s, 0, plan.tensors[t].elements))
        ForFetched(*plan.merge, tensor, s, run.first, run.count, add);
    }
  }
  return bytes;
}

uint64_t ExpertReadBytes(const Ledger& ledger) {
  return ledger.TotalRead(Purpose::kExpertData) + ledger.TotalRead(Purpose::kSample);
}

}  // namespace

Json TensorCounts(const ResolvedMerge& merge) {
  size_t merged = 0;
  for (const ResolvedTensor& tensor : merge.tensors)
    merged += tensor.merged ? 1 : 0;
  return {{"merged", merged}, {"copied", merge.tensors.size() - merged}, {"dropped", merge.dropped.size()}};
}

Json LedgerJson(const Ledger& ledger) {
  Json checkpoints = Json::array();
  for (size_t i = 0; i < ledger.Accounts(); ++i) {
    checkpoints.push_back(
        {{"model", ledger.Name(i)},
         {"base_read_bytes", ledger.Read(i, Purpose::kBaseData)},
         {"expert_read_bytes", ledger.Read(i, Purpose::kExpertData) + ledger.Read(i, Purpose::kSample)},
         {"sample_read_bytes", ledger.Read(i, Purpose::kSample)},
         {"header_read_bytes", ledger.Read(i, Purpose::kHeader)}});
  }
  return {{"base_read_bytes", ledger.TotalRead(Purpose::kBaseData)},
          {"expert_read_bytes", ExpertReadBytes(ledger)},
          {"sample_read_bytes", ledger.TotalRead(Purpose::kSample)},
          {"header_read_bytes", ledger.TotalRead(Purpose::kHeader)},
          {"alignment_bytes", ledger.TotalRead(Purpose::kAlignment)},
          {"side_file_read_bytes", ledger.TotalRead(Purpose::kSideFile)},
          {"write_bytes", ledger.Written()},
          {"checkpoints", checkpoints}};
}

Json MergeReportJson(const Plan& plan, const Ledger& ledger, const RunFacts& facts) {
  const ResolvedMerge& merge = *plan.merge;
  Json report = {{"output", facts.output},
                 {"method", merge.method->name},
                 {"tensors", TensorCounts(merge)},
                 {"io", LedgerJson(ledger)},
                 {"peak_memory_bytes", facts.peak_memory_bytes},
                 {"seconds", facts.seconds},
                 {"plan_digest", plan.digest},
                 {"root_digest", facts.root_digest},
                 {"threads", plan.options.threads},
                 {"target", facts.target},
                 {"warnings", facts.warnings}};
  AddBudgetFields(plan, ledger, /*measured=*/true, report);
  return report;
}

std::string MergeReportText(const Plan& plan, const Ledger& ledger, const RunFacts& facts) {
  const uint64_t read = ledger.TotalRead(Purpose::kBaseData) + ExpertReadBytes(ledger);
  std::string text = Format("{}: {} of {} models, {} tensors\n", facts.output, plan.merge->method->name,
                            plan.merge->models.size(), CountsText(*plan.merge));
  text += Format("  read     {} of experts, {} of the base\n", HumanBytes(ExpertReadBytes(ledger)),
                 HumanBytes(ledger.TotalRead(Purpose::kBaseData)));
  text += BudgetText(plan);
  text +=
      Format("  written  {}, the weights in {} file(s)\n", HumanBytes(ledger.Written()), plan.units.size());
  // After --resume the bytes of the earlier run are among those counted, so there is no rate to tell.
  const double rate = static_cast<double>(read + ledger.Written()) / std::max(facts.seconds, 1e-6);
  text += Format("  took     {:.2f} s{}, peak memory {}\n", facts.seconds,
                 facts.resumed ? "" : Format(" ({}/s)", HumanBytes(static_cast<uint64_t>(rate))),
                 HumanBytes(facts.peak_memory_bytes));
  text +=
      Format("  plan     {}\n  result   {}\n", plan.digest.substr(0, 16), facts.root_digest.substr(0, 16));
  return text;
}

Json PlanReportJson(const Plan& plan, const Ledger& ledger, const std::vector<std::string>& warnings) {
  const ResolvedMerge& merge = *plan.merge;
  const auto bytes = BytesByModel(plan);
  Json reads = Json::array();
  for (size_t i = 0; i < merge.models.size(); ++i) {
    reads.push_back({{"model", merge.models[i].name},
                     {"path", merge.models[i].path},
                     {"role", plan.reference_model[i] ? "base" : "expert"},
                     {"read_bytes", bytes[i]}});
  }
  std::map<std::string, uint64_t> units;
  for (const Unit& unit : plan.units)
    units[unit.file_name] = unit.layout.file_size;
  Json report = {{"method", merge.method->name},
                 {"tensors", TensorCounts(merge)},
                 {"reads", reads},
                 {"base_read_bytes", plan.costs.base_read_bytes},
                 {"expert_read_bytes", plan.costs.expert_read_bytes + plan.budget.sample_bytes},
                 {"sample_read_bytes", plan.budget.sample_bytes},
                 {"header_read_bytes", ledger.TotalRead(Purpose::kHeader)},
                 {"output_bytes", plan.costs.write_bytes},
                 {"files", units},
                 {"peak_memory_bytes", plan.memory.total_bytes() + kProgramBytes},
                 {"memory_limit_bytes", plan.options.memory_bytes},
                 {"least_memory_bytes", plan.least_memory_bytes},
                 {"block_bytes", plan.options.block_bytes},
                 {"resident_tensors", ResidentTensors(plan)},
                 {"plan_digest", plan.digest},
                 {"warnings", warnings}};
  AddBudgetFields(plan, ledger, /*measured=*/false, report);
  return report;
}

std::string PlanReportText(const Plan& plan) {
  const ResolvedMerge& merge = *plan.merge;
  const auto bytes = BytesByModel(plan);
  std::string text = Format("{} of {} models, tensors: {}\n\nreads\n", merge.method->name,
                            merge.models.size(), CountsText(merge));
  for (size_t i = 0; i < merge.models.size(); ++i)
    text += Format("  {:<7} {:>10}  {}\n", plan.reference_model[i] ? "base" : "expert", HumanBytes(bytes[i]),
                   merge.models[i].name);
  const std::string budget = BudgetText(plan);
  if (!budget.empty()) text += "\nbudget\n" + budget;
  text += "\nwrites\n";
  for (const Unit& unit : plan.units)
    text += Format("  {:>18}  {} ({} tensors)\n", HumanBytes(unit.layout.file_size), unit.file_name,
                   unit.tensors.size());
  text +=
      Format("\nmemory   at most {} of buffers under --memory {}, and {} for the program; the least is {}\n",
             HumanBytes(plan.memory.total_bytes()), HumanBytes(plan.options.memory_bytes),
             HumanBytes(kProgramBytes), HumanBytes(plan.least_memory_bytes));
  size_t twice = 0;
  for (const TensorPlan& tensor : plan.tensors)
    twice += tensor.passes() > 1 ? 1 : 0;
  if (twice > 0)
    text += Format(
        "passes   {} tensor(s) do not fit into the memory and are read more than once for their statistics\n",
        twice);
  text += Format("plan     {}\n", plan.digest.substr(0, 16));
  return text;
}

}  // namespace mergepipe
