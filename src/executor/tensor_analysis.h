#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "executor/block_sums.h"
#include "format/checkpoint.h"
#include "storage/ledger.h"
#include "txn/digest_tree.h"

namespace mergepipe {

/// One stored tensor that is read for an analysis.
struct AnalysedStream {
  const Checkpoint* checkpoint = nullptr;
  const TensorEntry* entry = nullptr;
  const Source* source = nullptr;
  uint64_t start = 0;  ///< of the tensor in the source
  std::string stamps;
  Purpose purpose = Purpose::kExpertData;
  bool wanted = true;          ///< false: a base that is read for others alone
  std::vector<uint64_t> kept;  ///< counts whose thresholds are wanted
};

/// Tensors of one name that are analysed together: a base and experts whose deltas are taken, or one tensor
/// that is digested and no more.
struct AnalysedTensor {
  std::vector<AnalysedStream> streams;
  bool compared = false;  ///< streams[0] is the base, and there are columns
  std::string base_stamps;
  uint64_t block_bytes = 0;
  uint64_t elements = 0;  ///< bytes where nothing is compared
  uint64_t element_bytes = 1;
  uint64_t leaf_elements() const { return kLeafBytes / element_bytes; }
  uint64_t block_elements() const { return block_bytes / element_bytes; }
  uint64_t blocks() const { return (elements + block_elements() - 1) / block_elements(); }
  bool wants_thresholds() const;
};

/// Where a stream's tensor is in a buffer: elements from `first` on.
struct StoredPiece {
  const std::byte* data = nullptr;
  uint64_t first = 0;
  uint64_t elements = 0;
};

/// What is known of one tensor while its pieces are worked through, by several threads.
class TensorAnalysis {
 public:
  explicit TensorAnalysis(const AnalysedTensor& tensor);
  /// Bytes that one takes for a tensor, findings included.
  static uint64_t MemoryBytes(const AnalysedTensor& tensor);

  /// One thread's part: consecutive pieces that together are whole blocks.
  class Part {
   public:
    Part(TensorAnalysis& analysis, const kernels::Kernels& kernels, RunScratch& scratch)
        : analysis_(analysis), kernels_(kernels), scratch_(scratch), sums_(analysis.tensor_.streams.size()) {}
    void AddBase(const StoredPiece& base);
    void AddExpert(size_t stream, const StoredPiece& base, const StoredPiece& expert);
    /// A tensor that is digested alone.
    void AddBytes(const StoredPiece& piece);
    /// Hands over what belongs to the whole tensor.
    void Finish();

   private:
    template <typename Add>
    void ForBlocks(size_t stream, const StoredPiece& piece, const Add& add);
    void PutLeaves(size_t stream, const StoredPiece& piece, const StoredRun& run, size_t leaves_before);

    TensorAnalysis& analysis_;
    const kernels::Kernels& kernels_;
    RunScratch& scratch_;
    std::vector<BlockSums> sums_;
    std::vector<ExactSum> l1_ = std::vector<ExactSum>(sums_.size());
  };

  const AnalysedTensor& tensor() const { return tensor_; }
  const Magnitudes<uint64_t>& magnitudes(size_t stream) const { return *shared_[stream].magnitudes; }
  /// Adds thresholds of a stream's deltas.
  void AddThresholds(size_t stream, std::vector<ExactThreshold> thresholds);
  bool finite(size_t stream) const { return shared_[stream].finite && shared_[0].finite; }

  /// All that was found, when every part is finished.
  std::vector<Finding> Findings();

 private:
  struct Shared {
    BaseColumns base;
    TensorKnowledge knowledge;
    std::unique_ptr<Magnitudes<uint64_t>> magnitudes;
    ExactSum l1;
    DigestTree digests;
    std::atomic<bool> finite{true};
  };
  bool IsBase(size_t stream) const { return tensor_.compared && stream == 0; }
  Finding FindingOf(size_t stream);

  const AnalysedTensor& tensor_;
  std::vector<Shared> shared_;
  std::mutex mutex_;
};

}  // namespace mergepipe
