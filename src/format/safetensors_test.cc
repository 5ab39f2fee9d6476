#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/text.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::RawSafetensors;
using tests::Succeeds;
using tests::TempFolder;

constexpr const char* kName = "experts/a/model.safetensors";

Result<SafetensorsHeader> ReadAt(const std::string& path) {
  const auto source = Must(OpenLocalSource(path, kName));
  Ledger ledger;
  return ReadSafetensorsHeader(*source, ledger, ledger.AddAccount("a"));
}

// The header of a whole file of these bytes.
Result<SafetensorsHeader> Read(const std::string& bytes) {
  const TempFolder folder;
  tests::WriteFile(folder / "file", bytes);
  return ReadAt(folder / "file");
}

// The header with this text in a file that has `data_bytes` of data behind it.
Result<SafetensorsHeader> Parse(const std::string& json, uint64_t data_bytes) {
  return ParseSafetensorsHeader(json, 8 + json.size() + data_bytes, kName);
}

std::string Tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return Format(R"({{"dtype":"{}","shape":{},"data_offsets":{}}})", dtype, shape, offsets);
}

testing::Matcher<const Result<SafetensorsHeader>&> IsRefused(const std::string& text) {
  return testing::AllOf(FailsWith(Code::kInvalidInput, kName), FailsWith(Code::kInvalidInput, text));
}

// --- the length (rules 1 to 3)

TEST(SafetensorsHeader, AFileHasAtLeastEightBytes) {
  for (size_t size = 0; size < 8; ++size)
    EXPECT_THAT(Read(std::string(size, '\0')), IsRefused(Format("has {} bytes, too few", size)));
}

TEST(SafetensorsHeader, AHeaderHasAtMost100MillionBytes) {
  for (const uint64_t length : {kMaxHeaderBytes + 1, uint64_t{1} << 32, UINT64_MAX}) {
    std::string file(64, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    EXPECT_THAT(Read(file), IsRefused(Format("a header of {} bytes, the limit is 100000000", length)));
  }
}

TEST(SafetensorsHeader, AHeaderEndsInsideTheFile) {
  std::string file = RawSafetensors("{}", "");
  EXPECT_THAT(Read(file), Succeeds());
  file.pop_back();
  EXPECT_THAT(Read(file), IsRefused("a header of 2 bytes but has only 1 bytes after the length"));
  const uint64_t length = kMaxHeaderBytes;
  std::memcpy(file.data(), &length, sizeof length);
  EXPECT_THAT(Read(file), IsRefused("probably an incomplete download"));
}

// --- the text (rules 4 to 6)

TEST(SafetensorsHeader, TheTextIsUtf8) {
  // Stray bytes; a surrogate, an overlong form, a code point that is too high.
  for (const char* bad : {"\xff", "\xc3(", "\xc0\xaf", "\xe2\x82", "\xf5\x80\x80\x80", "\x80", "\xed\xa0\x80",
                          "\xe0\x80\xaf", "\xf4\x90\x80\x80"})
    EXPECT_THAT(Parse(Format(R"({{"{}":{}}})", bad, Tensor("U8", "[0]", "[0,0]")), 0),
                IsRefused("not UTF-8"));
  const auto header = Parse(Format(R"({{"größe.☃":{}}})", Tensor("U8", "[0]", "[0,0]")), 0);
  EXPECT_EQ(Must(header).tensors[0].name, "größe.☃");
}

TEST(SafetensorsHeader, TheTextIsOneJsonObject) {
  for (const char* text : {"[]", "5", "\"x\"", "true", "null", "-1", "1.5"})
    EXPECT_THAT(Parse(text, 0), IsRefused("instead of one JSON object")) << text;
  for (const char* text : {"", " ", "{", "}", "{}{}", "{} x", "{},", "{\"a\"}", "{'a':1}", "{/**/}", "{}\v",
                           "{}//", "NaN", "x{}"})
    EXPECT_THAT(Parse(text, 0), IsRefused("not valid JSON")) << text;
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}})", 1),
              IsRefused("not valid JSON"));
  EXPECT_THAT(Parse(R"({"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}})", 1),
              IsRefused("not valid JSON"));
}

TEST(SafetensorsHeader, AnEmptyHeaderTextIsNoJson) {
  EXPECT_THAT(Read(RawSafetensors("", "")), IsRefused("not valid JSON"));
}

TEST(SafetensorsHeader, AByteOrderMarkIsRefused) {
  EXPECT_THAT(Parse("\xEF\xBB\xBF{}", 0), IsRefused("byte order mark"));
  EXPECT_THAT(Parse(" \xEF\xBB\xBF{}", 0), IsRefused("not valid JSON"));
}

TEST(SafetensorsHeader, WhitespaceAroundTheObjectIsTolerated) {
  for (const char* text : {"{}   ", "   {}", "\n\r\t {}\t\r\n ", "{ }"})
    EXPECT_THAT(Parse(text, 0), Succeeds()) << text;
  EXPECT_THAT(Read(RawSafetensors("{}" + std::string(4086, ' '), "")), Succeeds());
}

// --- metadata (rule 7)

TEST(SafetensorsHeader, MetadataMapsTextToText) {
  const auto header = Must(Parse(R"({"__metadata__":{"format":"pt","note":"größe"}})", 0));
  EXPECT_TRUE(header.has_metadata);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"note", "größe"}}));
}

TEST(SafetensorsHeader, MetadataMayBeAbsentOrNullOrEmpty) {
  EXPECT_FALSE(Must(Parse("{}", 0)).has_metadata);
  EXPECT_FALSE(Must(Parse(R"({"__metadata__":null})", 0)).has_metadata);
  EXPECT_TRUE(Must(Parse(R"({"__metadata__":{}})", 0)).has_metadata);
}

TEST(SafetensorsHeader, MetadataOfAnotherKindIsRefused) {
  for (const char* value : {"5", "\"x\"", "[]", "true", "-1"})
    EXPECT_THAT(Parse(Format(R"({{"__metadata__":{}}})", value), 0), IsRefused("'__metadata__' is"));
  for (const char* value : {"5", "null", "[]", "{}", "true", "-1", "1.5"})
    EXPECT_THAT(Parse(Format(R"({{"__metadata__":{{"epoch":{}}}}})", value), 0),
                IsRefused("metadata entry 'epoch' is"));
}

// --- tensor objects (rules 8 to 10)

TEST(SafetensorsHeader, ATensorIsAnObject) {
  for (const char* value : {"5", "\"x\"", "[]", "null", "true", "-1", R"(["U8",[1],[0,1]])"})
    EXPECT_THAT(Parse(Format(R"({{"w":{}}})", value), 1), IsRefused("'w' is"));
}

TEST(SafetensorsHeader, EveryFieldOfATensorIsRequired) {
  EXPECT_THAT(Parse(R"({"w":{}})", 0), IsRefused("tensor 'w' has no 'dtype'"));
  EXPECT_THAT(Parse(R"({"w":{"shape":[1],"data_offsets":[0,1]}})", 1),
              IsRefused("tensor 'w' has no 'dtype'"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1),
              IsRefused("tensor 'w' has no 'shape'"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"U8","shape":[1]}})", 1), IsRefused("tensor 'w' has no 'data_offsets'"));
}

TEST(SafetensorsHeader, UnknownFieldsOfATensorAreSkipped) {
  for (const char* value : {"5", "null", "\"x\"", "-1.5", "true", "[1,[2,{\"dtype\":3}]]",
                            R"({"dtype":"F32","shape":{"dtype":[]},"x":{}})"}) {
    const auto header = Must(Parse(
        Format(R"({{"w":{{"extra":{0},"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":{0}}}}})", value),
        1));
    EXPECT_EQ(header.tensors[0].dtype, DType::kU8) << value;
    EXPECT_EQ(header.tensors[0].shape, std::vector<uint64_t>{1}) << value;
  }
}

TEST(SafetensorsHeader, UnknownFieldsDoNotNestForEver) {
  const auto nested = [](size_t depth) {
    return Format(R"({{"w":{{"extra":{}{},"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}})",
                  std::string(depth, '['), std::string(depth, ']'));
  };
  EXPECT_THAT(Parse(nested(60), 1), Succeeds());
  EXPECT_THAT(Parse(nested(1'000'000), 1), IsRefused("tensor 'w' is nested too deeply"));
}

TEST(SafetensorsHeader, AFieldOfATensorStandsOnce) {
  EXPECT_THAT(Parse(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              IsRefused("tensor 'w' has the field 'dtype' twice"));
}

TEST(SafetensorsHeader, EveryTypeOfTheFormatIsRead) {
  for (const char* dtype : {"BOOL", "U8", "F8_E4M3", "I16", "BF16", "F32", "C64", "U64"}) {
    const uint64_t bytes = DTypeBits(*DTypeFromName(dtype));  // eight elements
    const auto header =
        Must(Parse(Format(R"({{"w":{}}})", Tensor(dtype, "[8]", Format("[0,{}]", bytes))), bytes));
    EXPECT_EQ(DTypeName(header.tensors[0].dtype), dtype);
  }
}

TEST(SafetensorsHeader, AnUnknownTypeIsNamed) {
  EXPECT_THAT(Parse(Format(R"({{"w":{}}})", Tensor("F128", "[1]", "[0,16]")), 16),
              IsRefused("tensor 'w' has the unknown dtype 'F128'"));
  for (const char* value : {"5", "null", "[]", "{}", "true"})
    EXPECT_THAT(Parse(Format(R"({{"w":{{"dtype":{},"shape":[1],"data_offsets":[0,1]}}}})", value), 1),
                IsRefused("in 'dtype'"));
}

TEST(SafetensorsHeader, AnEmptyShapeIsAScalarAndADimensionMayBeZero) {
  EXPECT_EQ(Must(Parse(Format(R"({{"w":{}}})", Tensor("F32", "[]", "[0,4]")), 4)).tensors[0].elements, 1u);
  EXPECT_EQ(Must(Parse(Format(R"({{"w":{}}})", Tensor("F32", "[3,0,5]", "[0,0]")), 0)).tensors[0].elements,
            0u);
}

TEST(SafetensorsHeader, AShapeIsAListOfWholeNumbers) {
  for (const char* shape : {"1", "null", "{}", "\"1\"", "[1.0]", "[-1]", "[1e0]", "[\"1\"]", "[null]",
                            "[[1]]", "[{}]", "[true]", "[18446744073709551616]", "[-0]"})
    EXPECT_THAT(Parse(Format(R"({{"w":{}}})", Tensor("U8", shape, "[0,1]")), 1), IsRefused("in 'shape'"))
        << shape;
}

TEST(SafetensorsHeader, AShapeHasAtMost64Dimensions) {
  const auto shape = [](size_t dimensions) {
    return "[" + Join(std::vector<std::string>(dimensions, "1"), ",") + "]";
  };
  EXPECT_THAT(Parse(Format(R"({{"w":{}}})", Tensor("U8", shape(64), "[0,1]")), 1), Succeeds());
  EXPECT_THAT(Parse(Format(R"({{"w":{}}})", Tensor("U8", shape(65), "[0,1]")), 1),
              IsRefused("more than 64 numbers in 'shape'"));
}

TEST(SafetensorsHeader, DataOffsetsAreTwoWholeNumbers) {
  for (const char* offsets : {"[]", "[0]", "[0,1,1]"})
    EXPECT_THAT(Parse(Format(R"({{"w":{}}})", Tensor("U8", "[1]", offsets)), 1),
                IsRefused("data_offsets instead of 2"));
  for (const char* offsets : {"1", "null", "{}", "[0,1.0]", "[-0,1]", "[0,\"1\"]", "[0,[1]]", "[0,null]"})
    EXPECT_THAT(Parse(Format(R"({{"w":{}}})", Tensor("U8", "[1]", offsets)), 1),
                IsRefused("in 'data_offsets'"))
        << offsets;
}

// --- sizes (rules 11 to 15)

TEST(SafetensorsHeader, TensorsTileTheDataInAnyOrderOfKeys) {
  const auto header = Must(Parse(Format(R"({{"c":{},"a":{},"b":{}}})", Tensor("U8", "[3]", "[5,8]"),
                                        Tensor("U8", "[5]", "[0,5]"), Tensor("U8", "[0]", "[5,5]")),
                                 8));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[2].name, "c");
}

TEST(SafetensorsHeader, AHoleIsRefused) {
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("U8", "[2]", "[1,3]")), 3),
              IsRefused("tensor 'a' begins at data byte 1 but the one before it ends at 0: there is a hole"));
  EXPECT_THAT(
      Parse(Format(R"({{"a":{},"b":{}}})", Tensor("U8", "[2]", "[0,2]"), Tensor("U8", "[1]", "[3,4]")), 4),
      IsRefused("tensor 'b' begins at data byte 3"));
}

TEST(SafetensorsHeader, AnOverlapIsRefused) {
  EXPECT_THAT(
      Parse(Format(R"({{"a":{},"b":{}}})", Tensor("U8", "[2]", "[0,2]"), Tensor("U8", "[2]", "[1,3]")), 3),
      IsRefused("they overlap"));
  EXPECT_THAT(Parse(Format(R"({{"a":{0},"b":{0}}})", Tensor("U8", "[2]", "[0,2]")), 2),
              IsRefused("they overlap"));
  std::vector<std::string> copies;
  for (int i = 0; i < 10'000; ++i)
    copies.push_back(Format(R"("t{}":{})", i, Tensor("U8", "[2]", "[0,2]")));
  EXPECT_THAT(Parse("{" + Join(copies, ",") + "}", 2), IsRefused("they overlap"));
}

TEST(SafetensorsHeader, ARangeDoesNotEndBeforeItBegins) {
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("U8", "[1]", "[1,0]")), 1),
              IsRefused("end before they begin"));
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("U8", "[1]", "[18446744073709551615,0]")), 1),
              IsRefused("end before they begin"));
}

TEST(SafetensorsHeader, ElementCountsAreMultipliedWithoutOverflowFromTheLeft) {
  const char* big = "1099511627776";  // 2^40
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("U8", Format("[{0},{0}]", big), "[0,0]")), 0),
              IsRefused("more elements than 64 bits count"));
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("U8", Format("[{0},{0},0]", big), "[0,0]")), 0),
              IsRefused("more elements than 64 bits count"));
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("U8", Format("[0,{0},{0}]", big), "[0,0]")), 0),
              Succeeds());
}

TEST(SafetensorsHeader, BitsAreMultipliedWithoutOverflow) {
  // 2^61 elements of 64 bits are 2^67 bits, which 64 bits would count as 0.
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("F64", "[2305843009213693952]", "[0,0]")), 0),
              IsRefused("more bits than 64 bits count"));
}

TEST(SafetensorsHeader, SubByteTensorsFillWholeBytes) {
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("F4", "[3]", "[0,2]")), 2),
              IsRefused("no whole number of bytes"));
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("F4", "[4]", "[0,2]")), 2), Succeeds());
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("F6_E2M3", "[2]", "[0,2]")), 2),
              IsRefused("no whole number of bytes"));
  EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("F6_E2M3", "[4]", "[0,3]")), 3), Succeeds());
}

TEST(SafetensorsHeader, ARangeHoldsJustTheShape) {
  for (const char* offsets : {"[0,11]", "[0,13]", "[0,0]"}) {
    const uint64_t data = std::stoull(std::string(offsets).substr(3));
    EXPECT_THAT(Parse(Format(R"({{"a":{}}})", Tensor("F32", "[3]", offsets)), data),
                IsRefused("shape [3] of F32, which takes 12 bytes, but data_offsets"));
  }
}

TEST(SafetensorsHeader, TheDataEndsWithTheFile) {
  const std::string text = Format(R"({{"a":{}}})", Tensor("U8", "[4]", "[0,4]"));
  EXPECT_THAT(Parse(text, 4), Succeeds());
  EXPECT_THAT(Parse(text, 3),
              IsRefused("promises 4 bytes of data but the file has 3; probably an incomplete"));
  EXPECT_THAT(Parse(text, 5),
              IsRefused("promises 4 bytes of data but the file has 5; there are stray bytes"));
  EXPECT_THAT(Parse("{}", 1), IsRefused("stray bytes"));
}

// --- names and alignment (rules 16 and 18)

TEST(SafetensorsHeader, ATensorIsNamedOnce) {
  EXPECT_THAT(
      Parse(Format(R"({{"a":{},"a":{}}})", Tensor("U8", "[1]", "[0,1]"), Tensor("U8", "[1]", "[1,2]")), 2),
      IsRefused("names the tensor 'a' twice"));
  EXPECT_THAT(Parse(R"({"__metadata__":{},"__metadata__":{}})", 0), IsRefused("'__metadata__' twice"));
  EXPECT_THAT(Parse(R"({"__metadata__":{"k":"1","k":"2"}})", 0), IsRefused("twice"));
  // The same name with an escape in it.
  EXPECT_THAT(
      Parse(Format(R"({{"a":{},"\u0061":{}}})", Tensor("U8", "[1]", "[0,1]"), Tensor("U8", "[1]", "[1,2]")),
            2),
      IsRefused("twice"));
}

TEST(SafetensorsHeader, MisalignedTensorsAreRead) {
  const auto header = Must(
      Parse(Format(R"({{"a":{},"b":{}}})", Tensor("U8", "[1]", "[0,1]"), Tensor("F64", "[1]", "[1,9]")), 9));
  EXPECT_EQ(header.tensors[1].begin, 1u);
}

// --- laws over many files

TEST(SafetensorsHeader, EveryTruncationOfASoundFileIsRefused) {
  const std::string whole = tests::SafetensorsOf(
      {tests::RandomTensor("a", DType::kF32, {3, 5}, 1), tests::RandomTensor("b", DType::kBF16, {7}, 2)});
  const TempFolder folder;
  tests::WriteFile(folder / "file", whole);
  EXPECT_THAT(ReadAt(folder / "file"), Succeeds());
  for (size_t size = whole.size(); size-- > 0;) {
    std::filesystem::resize_file(folder / "file", size);
    EXPECT_THAT(ReadAt(folder / "file"), FailsWith(Code::kInvalidInput, kName)) << size;
  }
  EXPECT_THAT(Read(whole + "x"), IsRefused("stray bytes"));
}

// What a parser accepts must hold, however the text was damaged.
void ExpectTiles(const SafetensorsHeader& header) {
  uint64_t at = 0;
  for (const TensorEntry& tensor : header.tensors) {
    EXPECT_EQ(tensor.begin, at);
    EXPECT_EQ(tests::CountOf(tensor.shape), tensor.elements);
    EXPECT_EQ(tensor.elements * DTypeBits(tensor.dtype), 8 * tensor.bytes());
    at = tensor.end;
  }
  EXPECT_EQ(header.data_start + at, header.file_size);
}

TEST(SafetensorsHeader, WhatIsAcceptedTilesTheFileHoweverTheTextWasDamaged) {
  const std::string sound =
      Format(R"({{"__metadata__":{{"format":"pt"}},"a":{},"b":{},"c":{}}})", Tensor("F32", "[2,3]", "[0,24]"),
             Tensor("BF16", "[0]", "[24,24]"), Tensor("U8", "[9]", "[24,33]"));
  std::mt19937 random(17);
  size_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = sound;
    for (size_t edits = 1 + random() % 2; edits > 0; --edits) {
      const char* alphabet = "0123456789{}[]\",:-.e FBU\xff";
      char& at = text[random() % text.size()];
      at = random() % 2 == 0 ? alphabet[random() % 25] : static_cast<char>(at ^ (1 << random() % 8));
    }
    const auto header = Parse(text, 33);
    if (header) ExpectTiles(*header);
    accepted += header ? 1 : 0;
  }
  EXPECT_GT(accepted, 100u);
}

TEST(SafetensorsHeader, OnlyTheHeaderIsRead) {
  const TempFolder folder;
  tests::WriteHollowCheckpoint(folder.path(), {{"w", DType::kF32, {1ull << 30}, ""}});
  const auto source = Must(OpenLocalSource(folder / "model.safetensors", "hollow"));
  Ledger ledger;
  const size_t account = ledger.AddAccount("hollow");
  const auto header = Must(ReadSafetensorsHeader(*source, ledger, account));
  EXPECT_EQ(header.tensors[0].bytes(), 4ull << 30);
  EXPECT_EQ(ledger.Read(account, Purpose::kHeader), header.data_start);
}

TEST(SafetensorsHeader, TheDigestIsOfTheHeaderAlone) {
  const std::string text = Format(R"({{"a":{}}})", Tensor("U8", "[1]", "[0,1]"));
  EXPECT_EQ(Must(Read(RawSafetensors(text, "x"))).digest, Must(Read(RawSafetensors(text, "y"))).digest);
  EXPECT_NE(Must(Read(RawSafetensors(text, "x"))).digest, Must(Read(RawSafetensors(text + " ", "x"))).digest);
}

TEST(SafetensorsHeader, AForeignFileIsNamedForWhatItIs) {
  const std::string rest(300, 'x');
  EXPECT_THAT(Read("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
              IsRefused("Git LFS"));
  EXPECT_THAT(Read("PK\x03\x04" + rest), IsRefused("ZIP archive"));
  EXPECT_THAT(Read("GGUF\x03" + rest), IsRefused("GGUF"));
  EXPECT_THAT(Read("\x80\x02}q" + rest), IsRefused("Python pickle"));
  EXPECT_THAT(Read("<!DOCTYPE html>" + rest), IsRefused("HTML page"));
  EXPECT_THAT(Read("GGUF"), IsRefused("GGUF"));  // too short to be anything
}

// The lengths 0x280 to 0x5xx begin like a pickle.
TEST(SafetensorsHeader, ACutFileWhoseLengthLooksLikeAPickleIsStillACutFile) {
  for (const size_t length : {0x280u, 0x380u, 0x480u, 0x580u}) {
    const std::string whole = RawSafetensors("{}" + std::string(length - 2, ' '), "");
    EXPECT_THAT(Read(whole), Succeeds());
    EXPECT_THAT(Read(whole.substr(0, whole.size() - 1)), IsRefused("incomplete download"));
    EXPECT_THAT(Read(whole + "x"), IsRefused("stray bytes"));
  }
}

}  // namespace
}  // namespace mergepipe
