#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "format/checkpoint.h"

namespace mergepipe {

/// One row of what a model stores.
struct StoredRow {
  size_t model = 0;  ///< position in ResolvedMerge::models
  uint64_t row = 0;
  bool operator==(const StoredRow&) const = default;
};

/// Where each row of an input comes from that is indexed by tokens, in the order of the output's tokens.
class RowMap {
 public:
  // Rows that are not the input's own.
  static constexpr int32_t kReference = -1;  ///< what the tensor's reference has there
  static constexpr int32_t kZero = -2;
  static constexpr int32_t kPadding = -3;  ///< the mean of all rows that are no padding

  void Add(int32_t row) { rows_.push_back(row); }
  /// A row of another model, or the mean of several.
  void AddMixture(std::span<const StoredRow> parts);

  uint64_t size() const { return rows_.size(); }
  /// The input's own row, or what stands for it: one of the constants, or below them for a mixture.
  int32_t At(uint64_t row) const { return rows_[row]; }
  /// The rows of other models whose mean a row is.
  std::span<const StoredRow> Mixture(int32_t code) const;
  static bool IsMixture(int32_t code) { return code < kPadding; }
  bool has_means() const { return has_means_; }
  uint64_t padding_rows() const;
  bool IsIdentity() const;
  /// Of everything that it says.
  std::string Digest() const;

 private:
  std::vector<int32_t> rows_;
  std::vector<StoredRow> parts_;
  std::vector<size_t> ends_;  // of each mixture in parts_
  bool has_means_ = false;
};

/// An input as it is once its rows stand in the output's order.
struct GatheredRows {
  TensorEntry entry;  ///< its name, and type, shape and elements when gathered; no place in a file
  uint64_t row_elements = 1;
  std::shared_ptr<const RowMap> map;
  std::string digest;                                  ///< of the map
  std::vector<std::pair<size_t, TensorPlace>> stored;  ///< the tensors of all models that rows may come from

  /// Where the tensor of a model stands that a mixture names.
  const TensorPlace& PlaceOf(size_t model) const;
  uint64_t real_rows() const { return map->size() - map->padding_rows(); }
};

}  // namespace mergepipe
