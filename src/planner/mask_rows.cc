#include "planner/mask_rows.h"

namespace mergepipe {
namespace {

uint64_t State(const TensorMask& mask, size_t source, size_t block) {
  const size_t from = mask.From(source, block);
  return from == TensorMask::kOmitted ? 0 : from + 1;
}

Json Row(const TensorMask& mask, size_t source) {
  Json row = Json::array();
  for (size_t b = 0; b < mask.blocks();) {
    size_t end = b + 1;
    while (end < mask.blocks() && State(mask, source, end) == State(mask, source, b))
      ++end;
    row.push_back(end - b);
    row.push_back(State(mask, source, b));
    b = end;
  }
  return row;
}

// False where the row has other than `blocks` states, or one that refers to no source up to itself.
bool FillRow(const Json& row, size_t source, TensorMask& mask) {
  size_t block = 0;
  for (size_t i = 0; i + 1 < row.size(); i += 2) {
    if (!row[i].is_number_unsigned() || !row[i + 1].is_number_unsigned()) return false;
    const auto count = row[i].get<uint64_t>();
    const auto state = row[i + 1].get<uint64_t>();
    if (count > mask.blocks() - block || state > source + 1) return false;
    for (const size_t end = block + static_cast<size_t>(count); block < end; ++block)
      mask.Set(source, block, state == 0 ? TensorMask::kOmitted : static_cast<size_t>(state - 1));
  }
  return row.size() % 2 == 0 && block == mask.blocks();
}

// Whoever holds a block for another must be read itself.
bool HoldersAreRead(const TensorMask& mask) {
  for (size_t s = 1; s < mask.sources(); ++s) {
    for (size_t b = 0; b < mask.blocks(); ++b) {
      const size_t from = mask.From(s, b);
      if (from != TensorMask::kOmitted && !mask.Reads(from, b)) return false;
    }
  }
  return true;
}

}  // namespace

Json MaskRows(const TensorMask& mask) {
  Json rows = Json::array();
  for (size_t s = 1; s < mask.sources(); ++s)
    rows.push_back(Row(mask, s));
  return {{"block_elements", mask.block_elements()}, {"rows", rows}};
}

std::optional<TensorMask> MaskFromRows(const Json& json, size_t sources, uint64_t elements,
                                       uint64_t block_elements) {
  try {
    const Json& rows = json.at("rows");
    if (json.at("block_elements") != block_elements || rows.size() + 1 != sources) return std::nullopt;
    TensorMask mask(sources, elements, block_elements);
    for (size_t s = 1; s < sources; ++s) {
      if (!FillRow(rows[s - 1], s, mask)) return std::nullopt;
    }
    if (!HoldersAreRead(mask)) return std::nullopt;
    return mask;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace mergepipe
