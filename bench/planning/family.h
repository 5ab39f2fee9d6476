#pragma once

#include <string>

#include "mergepipe/result.h"

namespace mergepipe::bench {

/// A Llama-like base and its experts: checkpoints whose data is a hole, and a catalog of random statistics.
struct FamilySize {
  size_t experts = 100;
  size_t layers = 34;  ///< of Llama 3 8B's shape: 34 make 16,195 blocks of 1 MiB
};

/// Writes base, expert-000, … and catalog.db into a folder.
Result<void> MakeFamily(const std::string& folder, const FamilySize& size);

std::string BasePath(const std::string& folder);
std::string ExpertPath(const std::string& folder, size_t expert);
std::string CatalogFilePath(const std::string& folder);

/// Settings of the merges. The catalog has the thresholds of this density.
inline constexpr const char* kWeight = "weight=0.01";
inline constexpr const char* kDensity = "density=0.2";

}  // namespace mergepipe::bench
