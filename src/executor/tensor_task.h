#pragma once

#include <vector>

#include "executor/padding_means.h"
#include "executor/tensor_merge.h"
#include "txn/leaf_pieces.h"
#include "txn/record.h"

namespace mergepipe {

/// The state of one output tensor between its first item and its last. Which items run when is the engine's
/// business.
class TensorTask : public TensorMerge {
 public:
  TensorTask(const Plan& plan, size_t tensor, const kernels::Kernels& kernels);

  const TensorPlan& plan() const { return plan_; }

  uint64_t FirstElement(uint64_t item) const { return item * plan_.item_elements; }
  uint64_t Count(uint64_t item) const {
    return std::min(plan_.item_elements, plan_.elements - FirstElement(item));
  }
  /// Stored bytes of one element of a source; 1 for tensors that are copied, whose elements are bytes.
  uint64_t SourceBytes(size_t source) const { return source_bytes_[source]; }
  /// Stored bytes of one element of the reference, where its values can be computed with.
  uint64_t compute_bytes() const { return DTypeBytes(tensor().dtype); }
  uint64_t OutputBytes() const { return tensor().merged ? DTypeBytes(tensor().dtype) : 1; }

  /// Hashes what was read of a source.
  void HashSource(size_t source, const ItemData& item);
  void HashOutput(uint64_t item, std::span<const std::byte> stored);

  /// Once all items are done.
  TensorRecord Record();

  /// Nobody waits for its turn any longer.
  void WakeAll() {
    TensorMerge::WakeAll();
    if (padding != nullptr) padding->WakeAll();
  }

  /// Null where no rows are padding.
  std::unique_ptr<PaddingMeans> padding;

  /// Where the items of a resident tensor lie, by item and source.
  std::vector<std::vector<const std::byte*>> resident;

 private:
  std::string SourceDigest(size_t source) const;

  const TensorPlan& plan_;
  const TensorMask& mask_;
  const uint64_t block_leaves_;
  std::vector<uint64_t> source_bytes_;
  // Sources that share blocks with others take their digests in the end.
  void ShareDigests(size_t source);

  DigestTree output_;
  std::vector<DigestTree> sources_;
  LeafPieces output_pieces_;
  std::vector<std::unique_ptr<LeafPieces>> source_pieces_;
};

}  // namespace mergepipe
