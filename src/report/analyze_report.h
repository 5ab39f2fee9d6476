#pragma once

#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "format/json.h"
#include "storage/ledger.h"

namespace mergepipe {

/// One checkpoint of an analysis.
struct AnalysedModel {
  std::string model;
  std::string content;
  uint64_t read_bytes = 0;
  size_t reused_tensors = 0;  ///< that the catalog knew already, so that they were not read for themselves
  size_t tensors = 0;
};

struct AnalyzeFacts {
  AnalysedModel base;
  std::vector<AnalysedModel> experts;
  uint64_t block_bytes = 0;
  std::vector<double> densities;
  std::string catalog;
  uint64_t catalog_bytes = 0;
  double seconds = 0;
  uint64_t peak_memory_bytes = 0;
  std::vector<std::string> warnings;
};

Json AnalyzeReportJson(const AnalyzeFacts& facts, const Ledger& ledger);
std::string AnalyzeReportText(const AnalyzeFacts& facts);

/// Size of a catalog's files.
uint64_t CatalogFileBytes(const std::string& path);

Json CatalogListJson(const std::string& path, const std::vector<CatalogEntry>& entries);
std::string CatalogListText(const std::string& path, const std::vector<CatalogEntry>& entries);
Json CatalogShowJson(const CatalogEntry& entry, const std::map<std::string, TensorContent>& tensors);
std::string CatalogShowText(const CatalogEntry& entry);
Json CatalogRemovalJson(const std::string& path, const CatalogRemoval& removal);
std::string CatalogRemovalText(const std::string& path, const CatalogRemoval& removal);

}  // namespace mergepipe
