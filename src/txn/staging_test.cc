#include "txn/staging.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/digest.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using tests::FailsWith;
using tests::Must;
using tests::ReadFile;
using tests::ReadTree;
using tests::Succeeds;
using tests::TempFolder;
using tests::WriteFile;

constexpr bool kForce = true, kResume = true;

// --- where an output may go

class Target : public testing::Test {
 protected:
  Target() {
    WriteFile(folder_ / "in/model.safetensors", "x");
    WriteFile(folder_ / "file.safetensors", "x");
    fs::create_directory_symlink("in", folder_ / "link");
  }
  Result<void> Check(const std::string& output, bool force = false, uint64_t bytes = 1000) {
    return CheckTarget(folder_ / output, {folder_ / "in", folder_ / "link", folder_ / "file.safetensors"},
                       bytes, force);
  }
  TempFolder folder_;
};

TEST_F(Target, MayBeNewWithOrWithoutParents) {
  for (const char* output : {"out", "out/", "a/b/c/out", "in2", "inn/er", "in.safetensors", "./out/../out2"})
    EXPECT_THAT(Check(output), Succeeds()) << output;
  EXPECT_THAT(ReadTree(folder_.path()), testing::SizeIs(2)) << "checking makes nothing";
}

TEST_F(Target, IsNoInputInWhateverSpelling) {
  for (const char* output : {"in", "in/", "./in", "x/../in", "link", "link/", "file.safetensors"}) {
    for (const bool force : {false, kForce})
      EXPECT_THAT(Check(output, force), FailsWith(Code::kUsage, "is an input of this merge")) << output;
  }
}

TEST_F(Target, LiesInNoInput) {
  for (const char* output : {"in/out", "in/a/b", "link/out"}) {
    for (const bool force : {false, kForce})
      EXPECT_THAT(Check(output, force), FailsWith(Code::kUsage, "lies inside the input")) << output;
  }
}

TEST_F(Target, HoldsNoInput) {
  EXPECT_THAT(Check("", kForce), FailsWith(Code::kUsage, "holds the input"));
  EXPECT_THAT(Check("..", kForce), FailsWith(Code::kUsage, "holds the input"));
}

TEST_F(Target, AnExistingOneNeedsForceAndMustBeACheckpoint) {
  WriteFile(folder_ / "old/config.json", "{}");
  WriteFile(folder_ / "photos/cat.jpg", "x");
  fs::create_directory(folder_ / "empty");
  EXPECT_THAT(Check("old"), FailsWith(Code::kUsage, "exists already"));
  EXPECT_THAT(Check("old", kForce), Succeeds());
  EXPECT_THAT(Check("photos"), FailsWith(Code::kUsage, "exists already"));
  EXPECT_THAT(Check("photos", kForce), FailsWith(Code::kUsage, "holds no checkpoint"));
  EXPECT_THAT(Check("empty"), Succeeds());
}

TEST_F(Target, IsAFolder) {
  WriteFile(folder_ / "thing", "x");
  fs::create_symlink("nowhere", folder_ / "dangling");
  for (const char* output : {"thing", "dangling"}) {
    for (const bool force : {false, kForce})
      EXPECT_THAT(Check(output, force), FailsWith(Code::kUsage, "exists and is no folder")) << output;
  }
  EXPECT_THAT(Check("thing/out"), FailsWith(Code::kUsage, "is no folder"));
}

TEST_F(Target, NeedsRoomOnTheDisk) {
  EXPECT_THAT(Check("out", false, 1ull << 60), FailsWith(Code::kNoSpace, "the output needs 1048576.0 TiB"));
}

// A merge that took its room and was interrupted must not stand in the way of the next.
TEST_F(Target, HasTheRoomThatAnEarlierRunLeft) {
  constexpr uint64_t kLeft = 256u << 20;
  const uint64_t free_bytes = fs::space(folder_.path()).available;
  if (free_bytes < 2 * kLeft) GTEST_SKIP() << "the disk is nearly full";
  const std::string left = StagingFolder(folder_ / "out") + "/model.safetensors";
  WriteFile(left, "x");
  const Descriptor file(::open(left.c_str(), O_WRONLY));
  if (::fallocate(file.get(), 0, 0, kLeft) != 0) GTEST_SKIP() << "the file system allocates nothing";
  EXPECT_THAT(Check("out", false, free_bytes - kLeft / 2), Succeeds());
}

// --- the staging folder

class StagingTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Staging>> Open(bool resume = false) {
    return Staging::Open(folder_ / "out", resume, ledger_);
  }
  // A staged model of one file.
  std::unique_ptr<Staging> Staged(const std::string& text) {
    auto staging = Must(Open());
    Must(staging->WriteText("config.json", text));
    return staging;
  }
  std::vector<std::string> Entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  TempFolder folder_;
  Ledger ledger_;
};

TEST_F(StagingTest, StandsHiddenBesideTheOutput) {
  for (const char* output : {"out", "out/", "./out", "x/../out"})
    EXPECT_EQ(StagingFolder(folder_ / output), folder_ / ".out.mergepipe-staging") << output;
  const auto staging = Must(Open());
  EXPECT_EQ(staging->folder(), StagingFolder(folder_ / "out"));
  EXPECT_FALSE(staging->resumed());
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(StagingTest, OneRunAtATimeIsAtAnOutput) {
  auto first = Must(Open());
  for (const bool resume : {false, kResume})
    EXPECT_THAT(Open(resume), FailsWith(Code::kUsage, "another merge is writing this output"));
  EXPECT_THAT(Staging::Open(folder_ / "other", false, ledger_), Succeeds());
  first.reset();
  EXPECT_THAT(Open(), Succeeds());
}

TEST_F(StagingTest, LeavesNothingUnlessKept) {
  { const auto staging = Staged("{}"); }
  EXPECT_THAT(Entries(), IsEmpty());
  { Staged("{}")->Keep(); }
  EXPECT_THAT(Entries(), ElementsAre(".out.mergepipe-staging"));
}

TEST_F(StagingTest, LeftoversAreRemovedOrResumed) {
  {
    const auto staging = Staged("left over");
    Must(staging->WriteText(kJournalName, ""));
    staging->Keep();
  }
  {
    const auto staging = Must(Open(kResume));
    EXPECT_TRUE(staging->resumed());
    EXPECT_EQ(ReadFile(staging->folder() + "/config.json"), "left over");
    staging->Keep();
  }
  const auto staging = Must(Open());
  EXPECT_FALSE(staging->resumed());
  EXPECT_THAT(ReadTree(staging->folder()), IsEmpty());
}

TEST_F(StagingTest, ResumingNothingIsAFreshStart) {
  EXPECT_FALSE(Must(Open(kResume))->resumed());
}

// What a kill leaves between the exchange of two outputs and the removal of the old one.
TEST_F(StagingTest, LeftoversWithoutAJournalAreNotResumed) {
  { Staged("an old output")->Keep(); }
  const auto staging = Must(Open(kResume));
  EXPECT_FALSE(staging->resumed());
  EXPECT_FALSE(staging->discards());
  EXPECT_THAT(ReadTree(staging->folder()), IsEmpty());
}

TEST_F(StagingTest, ParentsMadeForAnOutputGoWithIt) {
  fs::create_directory(folder_ / "kept");
  { const auto staging = Must(Staging::Open(folder_ / "kept/a/b/out", false, ledger_)); }
  EXPECT_TRUE(fs::is_empty(folder_ / "kept"));
  {
    const auto staging = Must(Staging::Open(folder_ / "kept/a/b/out", false, ledger_));
    Must(staging->Publish(false));
  }
  EXPECT_TRUE(fs::exists(folder_ / "kept/a/b/out"));
}

TEST_F(StagingTest, AParentThatIsAFileIsAnError) {
  WriteFile(folder_ / "file", "x");
  EXPECT_FALSE(Staging::Open(folder_ / "file/out", false, ledger_).has_value());
}

TEST_F(StagingTest, FilesAreCopiedAndWrittenWithFoldersOnTheWay) {
  WriteFile(folder_ / "from.txt", "side file");
  const size_t account = ledger_.AddAccount("base");
  const auto staging = Must(Open());
  Must(staging->WriteText("a/b/c.txt", "text"));
  EXPECT_EQ(Must(staging->CopyFile(folder_ / "from.txt", "1_Pooling/from.txt", account)),
            Hex(DigestOf(std::as_bytes(std::span(std::string_view("side file"))))));
  EXPECT_THAT(ReadTree(staging->folder()),
              ElementsAre(Pair("1_Pooling/from.txt", "side file"), Pair("a/b/c.txt", "text")));
  EXPECT_EQ(ledger_.Read(account, Purpose::kSideFile), 9u);
  EXPECT_EQ(ledger_.Written(), 13u);
  EXPECT_THAT(staging->CopyFile(folder_ / "missing", "x", account),
              FailsWith(Code::kInvalidInput, "missing"));
}

// --- publishing

using Publishing = StagingTest;

TEST_F(Publishing, MovesTheWholeFolderToItsPlace) {
  {
    const auto staging = Staged("{}");
    Must(staging->WriteText("sub/x", "y"));
    EXPECT_THAT(staging->Publish(false), Succeeds());
  }
  EXPECT_THAT(Entries(), ElementsAre("out"));
  EXPECT_THAT(ReadTree(folder_ / "out"), ElementsAre(Pair("config.json", "{}"), Pair("sub/x", "y")));
}

TEST_F(Publishing, RefusesWhatAppearedMeanwhile) {
  {
    const auto staging = Staged("new");
    WriteFile(folder_ / "out/config.json", "old");
    EXPECT_THAT(staging->Publish(false), FailsWith(Code::kUsage, "appeared while the merge ran"));
  }
  EXPECT_THAT(Entries(), ElementsAre("out"));
  EXPECT_THAT(ReadTree(folder_ / "out"), ElementsAre(Pair("config.json", "old")));
}

TEST_F(Publishing, TakesTheRoomOfAnEmptyFolder) {
  fs::create_directory(folder_ / "out");
  EXPECT_THAT(Staged("{}")->Publish(false), Succeeds());
  EXPECT_EQ(ReadFile(folder_ / "out/config.json"), "{}");
}

TEST_F(Publishing, ForceExchangesOldAndNew) {
  WriteFile(folder_ / "out/config.json", "old");
  WriteFile(folder_ / "out/only-old", "x");
  { EXPECT_THAT(Staged("new")->Publish(kForce), Succeeds()); }
  EXPECT_THAT(Entries(), ElementsAre("out"));
  EXPECT_THAT(ReadTree(folder_ / "out"), ElementsAre(Pair("config.json", "new")));
}

TEST_F(Publishing, AReaderFindsACompleteOutputAtEveryMoment) {
  WriteFile(folder_ / "out/config.json", "0");
  std::atomic<bool> done{false};
  std::atomic<size_t> missing{0}, looks{0};
  std::jthread reader([&] {
    while (!done || looks < 100) {
      if (!fs::exists(folder_ / "out/config.json")) ++missing;
      ++looks;
    }
  });
  for (int round = 1; round <= 12; ++round)
    Must(Staged(std::to_string(round))->Publish(kForce));
  done = true;
  reader.join();
  EXPECT_EQ(missing, 0u);
  EXPECT_EQ(ReadFile(folder_ / "out/config.json"), "12");
}

}  // namespace
}  // namespace mergepipe
