#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "methods/statistics.h"
#include "planner/memory.h"
#include "planner/plan.h"

namespace mergepipe {

/// The stored bytes of one item: of each source, elements [first, first + count). Under a mask only the
/// blocks that it reads are there; a source of which nothing was read is null.
struct ItemData {
  uint64_t first = 0;
  uint64_t count = 0;
  std::vector<const std::byte*> sources;
  const TensorMask* mask = nullptr;  ///< null: everything is there
};

/// The first value of an item that is not finite although it should be.
struct NonFinite {
  std::optional<size_t> source;  ///< none: the arithmetic made it
  uint64_t element = 0;          ///< in the tensor
};

/// Work memory of one worker for tiles.
struct TileMemory {
  std::vector<double> storage;  // doubles, used as floats where the work type is float
  std::vector<DType> dtypes;    // of the current tensor's sources
  RankedKeep ranked;            // of the current item
};

/// Computes items of one output tensor: widen, subtract, keep, apply, narrow. Pure arithmetic over buffers;
/// one instance serves all workers of a tensor.
class ItemCompute {
 public:
  ItemCompute(const ResolvedMerge& merge, const ResolvedTensor& tensor, const kernels::Kernels& kernels);

  /// Adds an item to the current statistics round.
  void AddStatistics(const ItemData& item, StatisticsCollector& collector,
                     StatisticsCollector::Scratch& scratch, TileMemory& memory) const;

  /// For each of statistics.Cuts() that lies among equals: how many elements of the item have just the
  /// threshold's magnitude.
  std::vector<uint64_t> CountEquals(const ItemData& item, const TensorStatistics& statistics,
                                    TileMemory& memory) const;

  /// Computes the item into `out` (stored type). `equals_left` is consumed by trimming. What no delta touches
  /// keeps the base's bytes. Returns where the result is not finite though no input gives cause.
  std::optional<NonFinite> Apply(const ItemData& item, const Constants& constants,
                                 const TensorStatistics& statistics, std::vector<uint64_t>& equals_left,
                                 std::byte* out, TileMemory& memory) const;

  /// Finds the first NaN, or infinity that not all inputs share, among the stored values.
  std::optional<NonFinite> FindNonFinite(const ItemData& item, TileMemory& memory) const;

 private:
  template <typename T>
  class Typed;

  const ResolvedMerge& merge_;
  const ResolvedTensor& tensor_;
  const kernels::Kernels& kernels_;
  std::vector<DType> dtypes_;
  uint64_t tile_elements_;
  RankGroups groups_;  // of tensors whose elements are ranked; items end where groups do
  bool ranks_ = false;
  bool wide_;  // float64 work type
};

}  // namespace mergepipe
