#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mergepipe {

/// The element types of the safetensors format. Names and sizes stand in dtype.cc.
enum class DType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// Returns the type with this safetensors name ("BF16"), or nothing.
std::optional<DType> DTypeFromName(std::string_view name);

/// Returns the type that a recipe's `dtype` names ("bfloat16", "torch.float16"), or nothing.
std::optional<DType> DTypeFromTorchName(std::string_view name);

/// Returns the safetensors name.
std::string_view DTypeName(DType dtype);

/// Returns the torch name as config.json writes it ("bfloat16"); empty for types that torch configs never
/// name.
std::string_view DTypeTorchName(DType dtype);

/// Bits of one element; sub-byte types exist.
uint32_t DTypeBits(DType dtype);

/// Bytes of one element. Only for whole-byte types.
inline uint64_t DTypeBytes(DType dtype) {
  return DTypeBits(dtype) / 8;
}

/// True for the types that merge methods compute with: F16, BF16, F32, F64.
bool IsMergeable(DType dtype);

/// True for the narrow float types whose values mean nothing without scales stored elsewhere (F8, F6, F4).
bool IsQuantizedFloat(DType dtype);

}  // namespace mergepipe
