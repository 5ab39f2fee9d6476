#include "executor/tensor_analysis.h"

#include <algorithm>

namespace mergepipe {
namespace {

uint64_t LeavesOf(const TensorEntry& entry) {
  return (entry.bytes() + kLeafBytes - 1) / kLeafBytes;
}

void Resize(BlockColumns& columns, const AnalysedTensor& tensor) {
  const uint64_t blocks = tensor.blocks();
  columns.block_elements = tensor.block_elements();
  columns.elements = tensor.elements;
  columns.energy.resize(blocks);
  columns.max_key.resize(blocks);
  columns.nonzeros.resize(blocks);
  columns.octaves.resize(blocks * kOctaves);
  columns.sketch_scale.resize(blocks);
  columns.sketch.resize(blocks * kSketchBuckets);
  columns.digest.resize(blocks);
}

void Resize(BaseColumns& columns, const AnalysedTensor& tensor) {
  columns.energy.resize(tensor.blocks());
  columns.digest.resize(tensor.blocks());
}

std::vector<std::pair<uint32_t, uint64_t>> HistogramOf(const std::vector<uint64_t>& counts) {
  std::vector<std::pair<uint32_t, uint64_t>> histogram;
  for (uint32_t bucket = 0; bucket < counts.size(); ++bucket) {
    if (counts[bucket] > 0) histogram.emplace_back(bucket, counts[bucket]);
  }
  return histogram;
}

}  // namespace

bool AnalysedTensor::wants_thresholds() const {
  return std::any_of(streams.begin(), streams.end(), [](const AnalysedStream& s) { return !s.kept.empty(); });
}

TensorAnalysis::TensorAnalysis(const AnalysedTensor& tensor)
    : tensor_(tensor), shared_(tensor.streams.size()) {
  for (size_t s = 0; s < shared_.size(); ++s) {
    Shared& shared = shared_[s];
    shared.digests = DigestTree(LeavesOf(*tensor.streams[s].entry));
    if (IsBase(s)) {
      Resize(shared.base, tensor);
    } else if (tensor.compared) {
      Resize(shared.knowledge.blocks, tensor);
      shared.magnitudes = std::make_unique<Magnitudes<uint64_t>>(tensor.wants_thresholds());
    }
  }
}

// Columns twice: as they are gathered, and as they are stored.
uint64_t TensorAnalysis::MemoryBytes(const AnalysedTensor& tensor) {
  constexpr uint64_t kColumnBytes = sizeof(double) + 2 * sizeof(uint32_t) + kOctaves * sizeof(uint32_t) +
                                    sizeof(float) + kSketchBuckets + sizeof(Digest128);
  constexpr uint64_t kHistogramBytes = kernels::kHighBuckets * sizeof(uint64_t);
  uint64_t bytes = 0;
  for (const AnalysedStream& stream : tensor.streams)
    bytes += LeavesOf(*stream.entry) * sizeof(Digest128);
  if (!tensor.compared) return bytes;
  const uint64_t each =
      2 * tensor.blocks() * kColumnBytes + kHistogramBytes * (tensor.wants_thresholds() ? 2 : 1);
  return bytes + (tensor.streams.size() - 1) * each + tensor.blocks() * (sizeof(double) + sizeof(Digest128));
}

// Calls add(run, sums) for the part of each block that lies in the piece, beginning blocks where they begin.
template <typename Add>
void TensorAnalysis::Part::ForBlocks(size_t stream, const StoredPiece& piece, const Add& add) {
  const AnalysedTensor& tensor = analysis_.tensor_;
  const uint64_t block_elements = tensor.block_elements();
  for (uint64_t at = piece.first; at < piece.first + piece.elements;) {
    const uint64_t block = at / block_elements;
    const uint64_t end = std::min({(block + 1) * block_elements, piece.first + piece.elements});
    BlockSums& sums = sums_[stream];
    if (at == block * block_elements) sums.Begin();
    StoredRun run{.base_dtype = tensor.streams[0].entry->dtype,
                  .dtype = tensor.streams[stream].entry->dtype,
                  .first = at,
                  .elements = end - at,
                  .leaf_elements = tensor.leaf_elements()};
    const size_t leaves_before = sums.leaves().size();
    add(run, sums);
    PutLeaves(stream, piece, run, leaves_before);
    if (!sums.finite()) analysis_.shared_[stream].finite = false;
    const bool block_ends = end == std::min((block + 1) * block_elements, tensor.elements);
    if (block_ends && stream == 0) sums.FinishBase(block, analysis_.shared_[0].base);
    if (block_ends && stream > 0) {
      sums.FinishDeltas(block, analysis_.shared_[stream].knowledge.blocks);
      l1_[stream].Merge(sums.l1());
    }
    at = end;
  }
}

// The digest of a tensor goes by leaves of its own bytes; those of the block by leaves of equally many
// elements, which are the same where elements are of the same size.
void TensorAnalysis::Part::PutLeaves(size_t stream, const StoredPiece& piece, const StoredRun& run,
                                     size_t leaves_before) {
  const AnalysedTensor& tensor = analysis_.tensor_;
  DigestTree& digests = analysis_.shared_[stream].digests;
  const uint64_t bytes = DTypeBytes(tensor.streams[stream].entry->dtype);
  if (bytes == tensor.element_bytes) {
    const auto& leaves = sums_[stream].leaves();
    const uint64_t first_leaf = run.first / tensor.leaf_elements();
    for (size_t k = leaves_before; k < leaves.size(); ++k)
      digests.Put(first_leaf + k - leaves_before, leaves[k]);
  } else if (run.first == piece.first) {
    digests.Set(piece.first * bytes / kLeafBytes, {piece.data, piece.elements * bytes}, kLeafBytes);
  }
}

void TensorAnalysis::Part::AddBase(const StoredPiece& base) {
  ForBlocks(0, base, [&](StoredRun& run, BlockSums& sums) {
    run.base = base.data + (run.first - base.first) * DTypeBytes(run.base_dtype);
    sums.AddBase(run, kernels_);
  });
}

void TensorAnalysis::Part::AddExpert(size_t stream, const StoredPiece& base, const StoredPiece& expert) {
  Magnitudes<uint64_t>& magnitudes = *analysis_.shared_[stream].magnitudes;
  ForBlocks(stream, expert, [&](StoredRun& run, BlockSums& sums) {
    const uint64_t at = run.first - expert.first;
    run.base = base.data + at * DTypeBytes(run.base_dtype);
    run.data = expert.data + at * DTypeBytes(run.dtype);
    sums.AddDeltas(run, kernels_, scratch_);
    const std::lock_guard lock(analysis_.mutex_);
    sums.Fold(scratch_, magnitudes);
  });
}

void TensorAnalysis::Part::AddBytes(const StoredPiece& piece) {
  analysis_.shared_[0].digests.Set(piece.first / kLeafBytes, {piece.data, piece.elements}, kLeafBytes);
}

void TensorAnalysis::Part::Finish() {
  const std::lock_guard lock(analysis_.mutex_);
  for (size_t s = 0; s < l1_.size(); ++s)
    analysis_.shared_[s].l1.Merge(l1_[s]);
}

void TensorAnalysis::AddThresholds(size_t stream, std::vector<ExactThreshold> thresholds) {
  shared_[stream].knowledge.thresholds = std::move(thresholds);
}

std::vector<Finding> TensorAnalysis::Findings() {
  std::vector<Finding> findings;
  for (size_t s = 0; s < shared_.size(); ++s) {
    if (tensor_.streams[s].wanted) findings.push_back(FindingOf(s));
  }
  return findings;
}

Finding TensorAnalysis::FindingOf(size_t stream) {
  const AnalysedStream& from = tensor_.streams[stream];
  Shared& shared = shared_[stream];
  Finding finding{.checkpoint = from.stamps,
                  .base = tensor_.compared && stream > 0 ? tensor_.base_stamps : "",
                  .name = from.entry->name,
                  .content = {from.entry->dtype, from.entry->shape, shared.digests.RootDigest()},
                  .block_bytes = tensor_.block_bytes,
                  .has_columns = tensor_.compared,
                  .base_columns = {},
                  .knowledge = {}};
  if (!tensor_.compared || !finite(stream)) return finding;
  if (stream == 0) {
    finding.base_columns = std::move(shared.base);
    return finding;
  }
  shared.knowledge.l1 = shared.l1.Value();
  shared.knowledge.histogram = HistogramOf(shared.magnitudes->counts);
  finding.knowledge = std::move(shared.knowledge);
  return finding;
}

}  // namespace mergepipe
