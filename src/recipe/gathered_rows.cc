#include "recipe/gathered_rows.h"

#include <algorithm>

#include "base/digest.h"

namespace mergepipe {

void RowMap::AddMixture(std::span<const StoredRow> parts) {
  rows_.push_back(kPadding - 1 - static_cast<int32_t>(ends_.size()));
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  ends_.push_back(parts_.size());
  has_means_ = has_means_ || parts.size() > 1;
}

std::span<const StoredRow> RowMap::Mixture(int32_t code) const {
  const auto number = static_cast<size_t>(kPadding - 1 - code);
  const size_t start = number == 0 ? 0 : ends_[number - 1];
  return std::span(parts_).subspan(start, ends_[number] - start);
}

uint64_t RowMap::padding_rows() const {
  uint64_t count = 0;
  while (count < rows_.size() && rows_[rows_.size() - 1 - count] == kPadding)
    ++count;
  return count;
}

bool RowMap::IsIdentity() const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

std::string RowMap::Digest() const {
  std::vector<uint64_t> mixtures;
  for (const StoredRow& part : parts_)
    mixtures.insert(mixtures.end(), {part.model, part.row});
  mixtures.insert(mixtures.end(), ends_.begin(), ends_.end());
  const std::vector<Digest128> both = {DigestOf(std::as_bytes(std::span(rows_))),
                                       DigestOf(std::as_bytes(std::span(mixtures)))};
  return Hex(DigestOf(std::span<const Digest128>(both)));
}

const TensorPlace& GatheredRows::PlaceOf(size_t model) const {
  return std::find_if(stored.begin(), stored.end(), [&](const auto& s) { return s.first == model; })->second;
}

}  // namespace mergepipe
