#include "report/analyze_report.h"

#include <filesystem>

#include "base/text.h"

namespace mergepipe {
namespace {

constexpr size_t kShortDigest = 16;

Json ModelJson(const AnalysedModel& model) {
  return {{"model", model.model},
          {"content", model.content},
          {"read_bytes", model.read_bytes},
          {"reused_tensors", model.reused_tensors},
          {"tensors", model.tensors}};
}

std::string ModelLine(const char* role, const AnalysedModel& model) {
  const std::string reused = model.reused_tensors == 0 ? ""
                                                       : Format(", {} of {} tensors were known",
                                                                model.reused_tensors, model.tensors);
  return Format("  {:<8} {}  {}: {} read{}\n", role, model.content.substr(0, kShortDigest), model.model,
                HumanBytes(model.read_bytes), reused);
}

std::string ContentText(const std::string& content) {
  return content.empty() ? "(unfinished)" : content.substr(0, kShortDigest);
}

Json AnalysisJson(const FinishedAnalysis& analysis) {
  return {{"base", analysis.base_content},
          {"block_bytes", analysis.block_bytes},
          {"thresholds", analysis.thresholds}};
}

Json EntryJson(const CatalogEntry& entry) {
  Json analyses = Json::array();
  for (const FinishedAnalysis& analysis : entry.analyses)
    analyses.push_back(AnalysisJson(analysis));
  return {{"content", entry.content.empty() ? Json() : Json(entry.content)},
          {"bytes", entry.bytes},
          {"tensors", entry.tensors},
          {"paths", entry.paths},
          {"analyses", analyses}};
}

}  // namespace

Json AnalyzeReportJson(const AnalyzeFacts& facts, const Ledger& ledger) {
  Json experts = Json::array();
  for (const AnalysedModel& model : facts.experts)
    experts.push_back(ModelJson(model));
  return {{"base", ModelJson(facts.base)},
          {"experts", experts},
          {"block_bytes", facts.block_bytes},
          {"catalog", facts.catalog},
          {"catalog_bytes", facts.catalog_bytes},
          {"densities", facts.densities},
          {"io",
           {{"base_read_bytes", ledger.TotalRead(Purpose::kBaseData)},
            {"expert_read_bytes", ledger.TotalRead(Purpose::kExpertData)},
            {"header_read_bytes", ledger.TotalRead(Purpose::kHeader)},
            {"alignment_bytes", ledger.TotalRead(Purpose::kAlignment)}}},
          {"seconds", facts.seconds},
          {"peak_memory_bytes", facts.peak_memory_bytes},
          {"warnings", facts.warnings}};
}

std::string AnalyzeReportText(const AnalyzeFacts& facts) {
  std::string text =
      Format("analysed {} expert(s) in blocks of {}\n", facts.experts.size(), HumanBytes(facts.block_bytes));
  text += ModelLine("base", facts.base);
  uint64_t bytes = facts.base.read_bytes;
  for (const AnalysedModel& model : facts.experts) {
    text += ModelLine("expert", model);
    bytes += model.read_bytes;
  }
  text += Format("  catalog  {}, {}\n", facts.catalog, HumanBytes(facts.catalog_bytes));
  const double rate = facts.seconds > 0 ? static_cast<double>(bytes) / facts.seconds : 0;
  return text + Format("  took     {:.2f} s ({}/s), peak memory {}\n", facts.seconds,
                       HumanBytes(static_cast<uint64_t>(rate)), HumanBytes(facts.peak_memory_bytes));
}

uint64_t CatalogFileBytes(const std::string& path) {
  uint64_t bytes = 0;
  for (const char* suffix : {"", "-wal"}) {
    std::error_code error;
    const uint64_t size = std::filesystem::file_size(path + suffix, error);
    bytes += error ? 0 : size;
  }
  return bytes;
}

Json CatalogListJson(const std::string& path, const std::vector<CatalogEntry>& entries) {
  Json checkpoints = Json::array();
  for (const CatalogEntry& entry : entries)
    checkpoints.push_back(EntryJson(entry));
  return {{"catalog", path}, {"catalog_bytes", CatalogFileBytes(path)}, {"checkpoints", checkpoints}};
}

std::string CatalogListText(const std::string& path, const std::vector<CatalogEntry>& entries) {
  std::string text =
      Format("{}: {} checkpoint(s), {}\n", path, entries.size(), HumanBytes(CatalogFileBytes(path)));
  for (const CatalogEntry& entry : entries) {
    text +=
        Format("  {:<16}  {:>10}  {:>5} tensors  {}\n", ContentText(entry.content), HumanBytes(entry.bytes),
               entry.tensors, entry.paths.empty() ? "(no path)" : Join(entry.paths, ", "));
  }
  return text;
}

Json CatalogShowJson(const CatalogEntry& entry, const std::map<std::string, TensorContent>& tensors) {
  Json json = EntryJson(entry);
  json["tensor_digests"] = Json::array();
  for (const auto& [name, tensor] : tensors) {
    json["tensor_digests"].push_back({{"name", name},
                                      {"dtype", DTypeName(tensor.dtype)},
                                      {"shape", tensor.shape},
                                      {"digest", Hex(tensor.digest)}});
  }
  return json;
}

std::string CatalogShowText(const CatalogEntry& entry) {
  std::string text = Format("content  {}\n",
                            entry.content.empty() ? "not known, its analysis is unfinished" : entry.content);
  text += Format("size     {}, {} tensors\n", HumanBytes(entry.bytes), entry.tensors);
  for (const std::string& path : entry.paths)
    text += Format("path     {}\n", path);
  for (const FinishedAnalysis& analysis : entry.analyses) {
    const std::string blocks = HumanBytes(analysis.block_bytes);
    text += analysis.base == entry.id
                ? Format("known    as a base, in blocks of {}\n", blocks)
                : Format("known    against {}, in blocks of {}, {} thresholds\n",
                         ContentText(analysis.base_content), blocks, analysis.thresholds);
  }
  return text;
}

Json CatalogRemovalJson(const std::string& path, const CatalogRemoval& removal) {
  return {{"catalog", path},
          {"catalog_bytes", CatalogFileBytes(path)},
          {"removed_checkpoints", removal.checkpoints},
          {"removed_tensors", removal.tensors}};
}

std::string CatalogRemovalText(const std::string& path, const CatalogRemoval& removal) {
  return Format("removed {} checkpoint(s), {} tensors; {} has {}\n", removal.checkpoints, removal.tensors,
                path, HumanBytes(CatalogFileBytes(path)));
}

}  // namespace mergepipe
