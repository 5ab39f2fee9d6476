#include "executor/verify_scan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/text.h"
#include "mergepipe/mergepipe.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "txn/manifest.h"

namespace mergepipe {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using tests::Must;
using tests::ReadFile;
using tests::StoredTensor;
using tests::TempFolder;
using tests::WriteFile;

constexpr uint64_t kElements = 700'000;  // of "big": 86 leaves in 6 chunks

/// A published output of two shards, and what is found in it.
class VerifyTest : public testing::Test {
 protected:
  VerifyTest() {
    const std::vector<StoredTensor> base = {tests::RandomTensor("big", DType::kBF16, {kElements}, 1),
                                            tests::RandomTensor("small", DType::kF32, {3}, 2),
                                            {"ids", DType::kI64, {4}, std::string(32, '\1')}};
    tests::WriteSharded(folder_ / "base", {{base[0]}, {base[1], base[2]}}, R"({"model_type": "llama"})");
    WriteFile(folder_ / "base/1_Pooling/config.json", "{}");
    tests::WriteCheckpoint(folder_ / "expert1", tests::NearTo(base, DType::kBF16, 9));
    WriteFile(folder_ / "r.yml", tests::Replace(tests::RecipeOf("ties", 1), "~/", ""));
    Must(Merge({.recipe_path = folder_ / "r.yml", .output = out_, .run = {.threads = 2}}));
  }

  VerifyFindings Scan(size_t threads = 2) {
    ProgressCounters progress;
    return Must(ScanAgainstManifest(out_, Must(ReadManifest(out_)),
                                    {.threads = threads, .memory_bytes = 64u << 20}, progress));
  }
  // "FILE: WHAT" for each difference.
  std::vector<std::string> Differences() {
    std::vector<std::string> lines;
    for (const Difference& difference : Scan().differences)
      lines.push_back(Format("{}: {}", difference.file, difference.what));
    return lines;
  }
  void Flip(const std::string& file, size_t at) {
    std::string bytes = ReadFile(out_ + "/" + file);
    bytes.at(at) ^= 1;
    WriteFile(out_ + "/" + file, bytes);
  }

  TempFolder folder_;
  const std::string out_ = folder_ / "out";
  const std::string first_ = tests::ShardName(0, 2), second_ = tests::ShardName(1, 2);
};

TEST_F(VerifyTest, ASoundOutputHasNoDifference) {
  for (const size_t threads : {1u, 8u}) {
    const VerifyFindings findings = Scan(threads);
    EXPECT_THAT(findings.differences, IsEmpty());
    EXPECT_THAT(findings.notes, IsEmpty());
    EXPECT_EQ(findings.tensors, 3u);
    EXPECT_EQ(findings.checked_bytes, 2 * kElements + 12 + 32);
  }
}

TEST_F(VerifyTest, OneBitOfATensorIsFoundWhereItIs) {
  const size_t start = fs::file_size(out_ + "/" + first_) - 2 * kElements;
  for (const uint64_t element : {uint64_t{0}, uint64_t{131'071}, uint64_t{131'072}, kElements - 1}) {
    Flip(first_, start + 2 * element);
    const VerifyFindings findings = Scan();
    ASSERT_EQ(findings.differences.size(), 1u);
    EXPECT_EQ(findings.differences[0].file, first_);
    EXPECT_EQ(findings.differences[0].tensor, "big");
    EXPECT_LE(findings.differences[0].element, element);
    EXPECT_GT(findings.differences[0].element + findings.differences[0].elements, element);
    EXPECT_LE(findings.differences[0].elements, kLeavesPerChunk * kLeafBytes / 2);
    Flip(first_, start + 2 * element);
  }
}

TEST_F(VerifyTest, SmallTensorsAndCopiesAreLookedAtToo) {
  const size_t size = fs::file_size(out_ + "/" + second_);
  Flip(second_, size - 1);
  EXPECT_THAT(Differences(), ElementsAre(HasSubstr("within elements [0, ")));
  EXPECT_EQ(Scan().differences.size(), 1u);
}

TEST_F(VerifyTest, AHeaderThatDiffersIsFound) {
  std::string bytes = ReadFile(out_ + "/" + second_);
  bytes[bytes.find("\"pt\"") + 1] = 'q';
  WriteFile(out_ + "/" + second_, bytes);
  EXPECT_THAT(Differences(), ElementsAre(second_ + ": its header differs"));
}

TEST_F(VerifyTest, AMissingOrShortOrLongShardIsFound) {
  const std::string whole = ReadFile(out_ + "/" + second_);
  WriteFile(out_ + "/" + second_, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(Differences(), testing::Contains(HasSubstr("bytes instead of")));
  WriteFile(out_ + "/" + second_, whole + "x");
  EXPECT_THAT(Differences(), testing::Contains(HasSubstr("bytes instead of")));
  fs::remove(out_ + "/" + second_);
  EXPECT_THAT(Differences(), testing::Contains(HasSubstr("can not be opened")));
}

TEST_F(VerifyTest, FilesThatALoaderReadsAreBinding) {
  for (const char* name : {"config.json", "model.safetensors.index.json", "1_Pooling/config.json"}) {
    const std::string text = ReadFile(out_ + "/" + name);
    WriteFile(out_ + "/" + name, text + " ");
    EXPECT_THAT(Differences(), ElementsAre(HasSubstr(Format("{}: differs", name))));
    fs::remove(out_ + "/" + name);
    EXPECT_THAT(Differences(), ElementsAre(HasSubstr("can not be opened")));
    WriteFile(out_ + "/" + name, text);
  }
}

TEST_F(VerifyTest, WhatPeopleEditIsANote) {
  WriteFile(out_ + "/README.md", "my own words");
  fs::remove(out_ + "/mergekit_config.yml");
  WriteFile(out_ + "/sub/notes.txt", "added");
  EXPECT_THAT(Differences(), IsEmpty());
  EXPECT_THAT(Scan().notes,
              testing::UnorderedElementsAre("README.md: was edited", "mergekit_config.yml: was removed",
                                            "sub/notes.txt: was added"));
}

TEST_F(VerifyTest, WeightsThatAreNotTheOutputsAreADifference) {
  WriteFile(out_ + "/extra.safetensors", tests::SafetensorsOf({}));
  EXPECT_THAT(Differences(), ElementsAre(HasSubstr("extra.safetensors: is not part of the output")));
}

TEST_F(VerifyTest, ASignalInterruptsIt) {
  const std::atomic<int> signal{2};
  ProgressCounters progress;
  EXPECT_THAT(ScanAgainstManifest(out_, Must(ReadManifest(out_)),
                                  {.memory_bytes = 64u << 20, .stop_signal = &signal}, progress),
              tests::FailsWith(Code::kInterrupted, "interrupted"));
}

}  // namespace
}  // namespace mergepipe
