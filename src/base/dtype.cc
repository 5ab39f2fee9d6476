#include "base/dtype.h"

#include <algorithm>
#include <array>

namespace mergepipe {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::string_view torch_name;
  uint32_t bits;
};

constexpr std::array<Row, 22> kRows = {{
    {DType::kBool, "BOOL", "bool", 8},
    {DType::kF4, "F4", "", 4},
    {DType::kF6E2M3, "F6_E2M3", "", 6},
    {DType::kF6E3M2, "F6_E3M2", "", 6},
    {DType::kU8, "U8", "uint8", 8},
    {DType::kI8, "I8", "int8", 8},
    {DType::kF8E5M2, "F8_E5M2", "float8_e5m2", 8},
    {DType::kF8E4M3, "F8_E4M3", "float8_e4m3fn", 8},
    {DType::kF8E8M0, "F8_E8M0", "float8_e8m0fnu", 8},
    {DType::kF8E4M3FNUZ, "F8_E4M3FNUZ", "float8_e4m3fnuz", 8},
    {DType::kF8E5M2FNUZ, "F8_E5M2FNUZ", "float8_e5m2fnuz", 8},
    {DType::kI16, "I16", "int16", 16},
    {DType::kU16, "U16", "uint16", 16},
    {DType::kF16, "F16", "float16", 16},
    {DType::kBF16, "BF16", "bfloat16", 16},
    {DType::kI32, "I32", "int32", 32},
    {DType::kU32, "U32", "uint32", 32},
    {DType::kF32, "F32", "float32", 32},
    {DType::kC64, "C64", "complex64", 64},
    {DType::kF64, "F64", "float64", 64},
    {DType::kI64, "I64", "int64", 64},
    {DType::kU64, "U64", "uint64", 64},
}};

constexpr const Row& RowOf(DType dtype) {
  return kRows[static_cast<size_t>(dtype)];
}

constexpr bool RowsStandInEnumOrder() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(RowsStandInEnumOrder());

template <typename Match>
std::optional<DType> Find(Match match) {
  const auto row = std::find_if(kRows.begin(), kRows.end(), match);
  if (row == kRows.end()) return std::nullopt;
  return row->dtype;
}

}  // namespace

std::optional<DType> DTypeFromName(std::string_view name) {
  return Find([&](const Row& row) { return row.name == name; });
}

std::optional<DType> DTypeFromTorchName(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  if (name.substr(0, kPrefix.size()) == kPrefix) name.remove_prefix(kPrefix.size());
  return Find([&](const Row& row) { return !row.torch_name.empty() && row.torch_name == name; });
}

std::string_view DTypeName(DType dtype) {
  return RowOf(dtype).name;
}
std::string_view DTypeTorchName(DType dtype) {
  return RowOf(dtype).torch_name;
}
uint32_t DTypeBits(DType dtype) {
  return RowOf(dtype).bits;
}

bool IsMergeable(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

bool IsQuantizedFloat(DType dtype) {
  return (dtype >= DType::kF4 && dtype <= DType::kF6E3M2) ||
         (dtype >= DType::kF8E5M2 && dtype <= DType::kF8E5M2FNUZ);
}

}  // namespace mergepipe
