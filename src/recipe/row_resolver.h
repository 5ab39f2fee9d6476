#pragma once

#include <map>
#include <set>

#include "recipe/resolve_state.h"

namespace mergepipe {

/// Lays the inputs of tensors that are indexed by tokens out in the order of the output's tokens.
class RowResolver {
 public:
  explicit RowResolver(ResolveState& state) : state_(state) {}

  /// True for tensors that a loader indexes by tokens, where the merge has a vocabulary and the reference's
  /// rows are those of its vocab_size at least.
  bool IsIndexedByTokens(const std::string& name, const TensorSource& reference);
  /// True where another input of such a tensor goes with it; else a fault is told.
  bool Fits(const TensorSource& source, const TensorSource& reference);
  /// The output's shape, from the reference's.
  std::vector<uint64_t> ShapeOf(const std::vector<uint64_t>& reference) const;
  /// Gives every source its rows, unless all of them are laid out like the output already. `stand_in`: the
  /// first source is there for a budget alone, and no model's tokens count by it.
  void Lay(ResolvedTensor& tensor, bool stand_in);

 private:
  struct Maps {
    std::vector<std::shared_ptr<const RowMap>> of;  // by source
    std::string note;                               // where the rows come from
  };
  struct Counts {
    uint64_t shared = 0, lone = 0, of_base = 0, means = 0, zero = 0, told = 0;
  };

  const Maps* MapsFor(const ResolvedTensor& tensor, bool stand_in);
  bool AddRow(uint64_t id, const std::vector<size_t>& models, bool stand_in, const std::string& tensor,
              std::vector<RowMap>& maps, Counts& counts);
  std::optional<std::vector<StoredRow>> DefaultOf(uint64_t id, const std::vector<size_t>& owners,
                                                  const std::vector<size_t>& models,
                                                  const std::string& tensor, Counts& counts);
  DType TypeOf(const ResolvedTensor& tensor, const Maps& maps) const;
  bool RowsExist(const ResolvedTensor& tensor, const Maps& maps);
  const TensorEntry& StoredEntry(size_t model, const TensorPlace& place) const;
  void Fault(std::string text);

  ResolveState& state_;
  std::map<std::pair<std::vector<size_t>, bool>, Maps> known_;
  std::set<std::string> told_;
};

}  // namespace mergepipe
