#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/text.h"
#include "format/safetensors.h"
#include "support/checkpoints.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::Must;

// What a reader makes of a layout's first bytes.
SafetensorsHeader ReadBack(const SafetensorsLayout& layout) {
  uint64_t length = 0;
  std::memcpy(&length, layout.prefix.data(), sizeof length);
  EXPECT_EQ(layout.prefix.size(), 8 + length);
  return Must(ParseSafetensorsHeader(std::string_view(layout.prefix).substr(8), layout.file_size, "layout"));
}

TensorEntry Entry(std::string name, DType dtype, std::vector<uint64_t> shape) {
  const uint64_t elements = tests::CountOf(shape);
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .elements = elements};
}

// Tensors of every type, scalars and empty ones among them, with names that JSON must escape.
std::vector<TensorEntry> RandomEntries(std::mt19937& random) {
  constexpr DType kTypes[] = {DType::kBool, DType::kF4,   DType::kF6E3M2, DType::kF8E4M3, DType::kI16,
                              DType::kF16,  DType::kBF16, DType::kF32,    DType::kF64,    DType::kU64};
  constexpr const char* kParts[] = {"model.layers.", "größe", "\"quoted\"", "back\\slash", "tab\t", "☃", "w"};
  std::vector<TensorEntry> entries;
  for (size_t count = random() % 12; entries.size() < count;) {
    const DType dtype = kTypes[random() % 10];
    std::vector<uint64_t> shape;
    for (size_t dimensions = random() % 4; shape.size() < dimensions;)
      shape.push_back(random() % 6);
    if (DTypeBits(dtype) < 8) shape.push_back(4);  // whole bytes
    entries.push_back(Entry(Format("{}{}", kParts[random() % 7], entries.size()), dtype, shape));
  }
  return entries;
}

TEST(SafetensorsLayout, IsReadBackAsItWasLaidOut) {
  std::mt19937 random(23);
  for (int round = 0; round < 300; ++round) {
    const std::vector<TensorEntry> entries = RandomEntries(random);
    const SafetensorsLayout layout = LayOutSafetensors(entries, {{"note", "größe \"x\"\n"}});
    const SafetensorsHeader header = ReadBack(layout);
    std::map<std::string, const TensorEntry*> read;
    for (const TensorEntry& tensor : header.tensors)
      read[tensor.name] = &tensor;
    ASSERT_EQ(read.size(), entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const TensorEntry& tensor = *read.at(entries[i].name);
      EXPECT_EQ(tensor.dtype, entries[i].dtype);
      EXPECT_EQ(tensor.shape, entries[i].shape);
      EXPECT_EQ(header.data_start + tensor.begin, layout.offsets[i]);
    }
    EXPECT_EQ(header.metadata.at("note"), "größe \"x\"\n");
  }
}

TEST(SafetensorsLayout, DataStartsAtAPageAndTheHeaderWithItsObject) {
  std::mt19937 random(29);
  for (int round = 0; round < 100; ++round) {
    const SafetensorsLayout layout = LayOutSafetensors(RandomEntries(random), {});
    EXPECT_EQ(layout.prefix.size() % SafetensorsLayout::kDataAlignment, 0u);
    EXPECT_EQ(layout.prefix[8], '{');
    const size_t end = layout.prefix.rfind('}');
    EXPECT_EQ(layout.prefix.find_first_not_of(' ', end + 1), std::string::npos);
  }
}

TEST(SafetensorsLayout, TensorsArePackedInTheOrderGiven) {
  const SafetensorsLayout layout = LayOutSafetensors(
      {Entry("z", DType::kF32, {3}), Entry("empty", DType::kF32, {0}), Entry("a", DType::kBF16, {5})}, {});
  const uint64_t start = layout.prefix.size();
  EXPECT_EQ(layout.offsets, (std::vector<uint64_t>{start, start + 12, start + 12}));
  EXPECT_EQ(layout.file_size, start + 22);
}

TEST(SafetensorsLayout, NamesTheFormatUnlessTheMetadataDoes) {
  EXPECT_EQ(ReadBack(LayOutSafetensors({}, {})).metadata.at("format"), "pt");
  const SafetensorsHeader kept = ReadBack(LayOutSafetensors({}, {{"format", "mlx"}, {"a", "b"}}));
  EXPECT_EQ(kept.metadata, (std::map<std::string, std::string>{{"format", "mlx"}, {"a", "b"}}));
}

TEST(SafetensorsLayout, EqualTensorsMakeEqualBytes) {
  const std::vector<TensorEntry> entries = {Entry("a", DType::kF32, {3}), Entry("b", DType::kF32, {})};
  EXPECT_EQ(LayOutSafetensors(entries, {{"k", "v"}}).prefix, LayOutSafetensors(entries, {{"k", "v"}}).prefix);
}

}  // namespace
}  // namespace mergepipe
