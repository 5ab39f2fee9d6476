#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace mergepipe {
namespace {

// Names and bits as the format lists them, in its order of rank.
const std::vector<std::pair<std::string, uint32_t>>& Listed() {
  static const std::vector<std::pair<std::string, uint32_t>> types = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  return types;
}

TEST(DType, EveryTypeOfTheFormatIsKnownByNameAndSize) {
  for (const auto& [name, bits] : Listed()) {
    const auto dtype = DTypeFromName(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(DTypeName(*dtype), name);
    EXPECT_EQ(DTypeBits(*dtype), bits) << name;
  }
}

TEST(DType, RanksFollowTheFormat) {
  for (size_t i = 1; i < Listed().size(); ++i)
    EXPECT_LT(*DTypeFromName(Listed()[i - 1].first), *DTypeFromName(Listed()[i].first));
}

TEST(DType, NamesAreExact) {
  for (const char* name : {"", "f32", "F32 ", "FLOAT32", "F8", "F128", "bfloat16"})
    EXPECT_FALSE(DTypeFromName(name).has_value()) << name;
}

TEST(DType, TorchNamesWorkWithAndWithoutTheirPrefix) {
  for (const auto& [torch, name] : std::vector<std::pair<std::string, std::string>>{{"float32", "F32"},
                                                                                    {"float16", "F16"},
                                                                                    {"bfloat16", "BF16"},
                                                                                    {"float64", "F64"},
                                                                                    {"int64", "I64"}}) {
    EXPECT_EQ(DTypeName(DTypeFromTorchName(torch).value()), name);
    EXPECT_EQ(DTypeName(DTypeFromTorchName("torch." + torch).value()), name);
    EXPECT_EQ(DTypeTorchName(DTypeFromName(name).value()), torch);
  }
}

TEST(DType, WhatTorchDoesNotNameIsNoTorchName) {
  for (const char* name : {"", "torch.", "F32", "torch.torch.float32", "float", "half"})
    EXPECT_FALSE(DTypeFromTorchName(name).has_value()) << name;
}

TEST(DType, OnlyFourTypesAreMerged) {
  std::set<std::string> mergeable;
  for (const auto& [name, bits] : Listed()) {
    if (IsMergeable(DTypeFromName(name).value())) mergeable.insert(name);
  }
  EXPECT_EQ(mergeable, (std::set<std::string>{"F16", "BF16", "F32", "F64"}));
}

TEST(DType, NarrowFloatsAreQuantized) {
  std::set<std::string> quantized;
  for (const auto& [name, bits] : Listed()) {
    if (IsQuantizedFloat(DTypeFromName(name).value())) quantized.insert(name);
  }
  EXPECT_EQ(quantized, (std::set<std::string>{"F4", "F6_E2M3", "F6_E3M2", "F8_E5M2", "F8_E4M3", "F8_E8M0",
                                              "F8_E4M3FNUZ", "F8_E5M2FNUZ"}));
}

}  // namespace
}  // namespace mergepipe
