#include "txn/journal.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/text.h"
#include "planner/blocks.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"
#include "txn/digest_tree.h"

namespace mergepipe {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;
using tests::FailsWith;
using tests::Must;
using tests::Planned;
using tests::TempFolder;

/// A plan of four tensors, and a staging folder in which a run finished some of them.
class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    const auto base = tests::SmallModel(DType::kF32, 1);
    tests::WriteSharded(folder_ / "base", {{base[0], base[1]}, {base[2], base[3]}});
    tests::WriteCheckpoint(folder_ / "expert1", {base[0], base[1], base[2], base[3]});
    planned_ = Must(tests::PlanRecipe(folder_.path(), tests::RecipeOf("ties", 1)));
  }

  std::unique_ptr<Staging> OpenStaging(bool resume) {
    return Must(Staging::Open(folder_ / "out", resume, *planned_.ledger));
  }
  std::unique_ptr<Journal> OpenJournal(Staging& staging) {
    return Must(Journal::Open(staging, planned_.plan, *planned_.ledger));
  }

  // Files of the right size with the header in place, as the engine makes them.
  void CreateFiles(Staging& staging) const {
    for (const Unit& unit : planned_.plan.units) {
      const auto file = Must(staging.CreateFile(unit.file_name, unit.layout.file_size));
      Must(file->Write(0, std::as_bytes(std::span(unit.layout.prefix))));
    }
  }

  // Writes made-up bytes of tensor `number` and adds their record.
  void Finish(Staging& staging, Journal& journal, size_t number) const {
    const std::string bytes(planned_.plan.merge->tensors[number].bytes(), static_cast<char>('a' + number));
    const auto [unit, offset] = PlaceOf(number);
    const auto file = Must(CreateOutputFile(staging.folder() + "/" + unit->file_name, unit->layout.file_size,
                                            /*resume=*/true, *planned_.ledger));
    Must(file->Write(offset, std::as_bytes(std::span(bytes))));
    DigestTree tree((bytes.size() + LeafBytes(number) - 1) / LeafBytes(number));
    tree.Set(0, std::as_bytes(std::span(bytes)), LeafBytes(number));
    const TensorRecord record{
        .digest = tree.Root(), .chunks = {Format("chunk {}", number)}, .sources = {"s", "t"}};
    Must(journal.Add(planned_.plan.merge->tensors[number].name, record, *planned_.ledger));
  }

  uint64_t LeafBytes(size_t number) const { return OutputLeafBytes(planned_.plan, number); }

  std::pair<const Unit*, uint64_t> PlaceOf(size_t number) const {
    for (const Unit& unit : planned_.plan.units) {
      for (size_t i = 0; i < unit.tensors.size(); ++i) {
        if (unit.tensors[i] == number) return {&unit, unit.layout.offsets[i]};
      }
    }
    return {nullptr, 0};
  }

  // A run that finished these tensors and was stopped.
  void Interrupted(const std::vector<size_t>& numbers, bool resume = false) {
    const auto staging = OpenStaging(resume);
    const auto journal = OpenJournal(*staging);
    if (!resume) CreateFiles(*staging);
    for (const size_t number : numbers)
      Finish(*staging, *journal, number);
    staging->Keep();
  }

  // The tensors that a resumed run believes to be finished.
  std::vector<size_t> Believed() {
    const auto staging = OpenStaging(true);
    const auto finished = OpenJournal(*staging)->TakeFinished();
    staging->Keep();
    std::vector<size_t> numbers;
    for (size_t i = 0; i < finished.size(); ++i) {
      if (finished[i]) numbers.push_back(i);
    }
    return numbers;
  }

  std::string JournalFile() const {
    const std::string staging = StagingFolder(folder_ / "out");
    for (const auto& entry : fs::directory_iterator(staging)) {
      if (entry.path().filename().string().find("journal") != std::string::npos) return entry.path().string();
    }
    return staging + "/no journal";
  }

  TempFolder folder_;
  Planned planned_;
};

TEST_F(JournalTest, AFreshOneHasFinishedNothing) {
  const auto staging = OpenStaging(false);
  const auto journal = OpenJournal(*staging);
  EXPECT_EQ(journal->entries(), 0u);
  const auto finished = journal->TakeFinished();
  ASSERT_EQ(finished.size(), planned_.plan.merge->tensors.size());
  for (const auto& record : finished)
    EXPECT_FALSE(record.has_value());
}

TEST_F(JournalTest, AResumedRunHasWhatWasFinished) {
  Interrupted({2, 0});
  const auto staging = OpenStaging(true);
  const auto journal = OpenJournal(*staging);
  EXPECT_EQ(journal->entries(), 2u);
  const auto finished = journal->TakeFinished();
  EXPECT_FALSE(finished[1] || finished[3]);
  ASSERT_TRUE(finished[0] && finished[2]);
  EXPECT_THAT(finished[2]->chunks, ElementsAre("chunk 2"));
  EXPECT_THAT(finished[2]->sources, ElementsAre("s", "t"));
}

TEST_F(JournalTest, ARunMayBeInterruptedAgainAndAgain) {
  Interrupted({1});
  Interrupted({3}, true);
  Interrupted({}, true);
  Interrupted({0}, true);
  EXPECT_THAT(Believed(), ElementsAre(0, 1, 3));
}

TEST_F(JournalTest, BytesThatAreNotWhatTheJournalSaysAreNotBelieved) {
  Interrupted({0, 1, 2, 3});
  const auto [unit, offset] = PlaceOf(2);
  const std::string path = StagingFolder(folder_ / "out") + "/" + unit->file_name;
  std::string bytes = tests::ReadFile(path);
  bytes[offset + 5] ^= 1;
  tests::WriteFile(path, bytes);
  EXPECT_THAT(Believed(), ElementsAre(0, 1, 3));
}

TEST_F(JournalTest, AMissingOrShortFileIsNotBelieved) {
  Interrupted({0, 1, 2, 3});
  const std::string staging = StagingFolder(folder_ / "out");
  const Unit* first = PlaceOf(0).first;
  std::vector<size_t> others;
  for (size_t i = 0; i < 4; ++i) {
    if (PlaceOf(i).first != first) others.push_back(i);
  }
  fs::resize_file(staging + "/" + first->file_name, first->layout.file_size - 1);
  EXPECT_EQ(Believed(), others);
  fs::remove(staging + "/" + first->file_name);
  EXPECT_EQ(Believed(), others);
}

// The last line may be cut anywhere: what stands before it counts, and what is added later too.
TEST_F(JournalTest, ACutLastLineCostsItsTensorAlone) {
  Interrupted({0, 1});
  const std::string whole = tests::ReadFile(JournalFile());
  const size_t last_line = whole.rfind('\n', whole.size() - 2) + 1;
  for (const size_t size : {last_line, last_line + 1, (last_line + whole.size()) / 2, whole.size() - 1}) {
    tests::WriteFile(JournalFile(), whole.substr(0, size));
    EXPECT_THAT(Believed(), ElementsAre(0)) << size;
    Interrupted({3}, true);
    EXPECT_THAT(Believed(), ElementsAre(0, 3)) << size;
  }
}

TEST_F(JournalTest, ACutFirstLineIsAFreshStart) {
  Interrupted({0, 1});
  const std::string whole = tests::ReadFile(JournalFile());
  for (const size_t size : {size_t{0}, size_t{1}, whole.find('\n')}) {
    tests::WriteFile(JournalFile(), whole.substr(0, size));
    EXPECT_THAT(Believed(), IsEmpty()) << size;
    Interrupted({3}, true);
    EXPECT_THAT(Believed(), ElementsAre(3)) << size;
  }
}

TEST_F(JournalTest, LinesThatAreNoRecordsEndIt) {
  Interrupted({0, 1});
  const std::string whole = tests::ReadFile(JournalFile());
  for (const char* line :
       {"null", "[]", "{}", "5", R"({"tensor": 5})", R"({"tensor": "x", "record": {}, "ledger": null})"}) {
    tests::WriteFile(JournalFile(), whole + line + "\n");
    EXPECT_THAT(Believed(), ElementsAre(0, 1)) << line;
  }
}

TEST_F(JournalTest, AnotherMergesJournalIsRefused) {
  Interrupted({0});
  const Planned other = Must(tests::PlanRecipe(folder_.path(), tests::RecipeOf("ties", 1, "{density: 0.5}")));
  {
    const auto staging = OpenStaging(true);
    EXPECT_THAT(Journal::Open(*staging, other.plan, *other.ledger),
                FailsWith(Code::kUsage, "belongs to another merge"));
    staging->Keep();
  }
  EXPECT_THAT(Believed(), ElementsAre(0));
}

TEST_F(JournalTest, WithoutResumeNothingIsBelieved) {
  Interrupted({0, 1});
  const auto staging = OpenStaging(false);
  for (const auto& record : OpenJournal(*staging)->TakeFinished())
    EXPECT_FALSE(record.has_value());
}

TEST_F(JournalTest, TheLedgerIsCarriedOn) {
  const size_t account = planned_.plan.merge->models[1].checkpoint->account();
  planned_.ledger->Charge(account, Purpose::kExpertData, 100'000);  // more than the finished tensor's
  planned_.ledger->Charge(account, Purpose::kAlignment, 50);
  Interrupted({0});
  planned_ = Must(tests::PlanRecipe(folder_.path(), tests::RecipeOf("ties", 1)));
  const uint64_t written = planned_.ledger->Written();
  Believed();
  EXPECT_EQ(planned_.ledger->Read(account, Purpose::kExpertData), ExpertBytes(planned_.plan, 0, 1));
  EXPECT_EQ(planned_.ledger->Read(account, Purpose::kAlignment), 50u);
  EXPECT_GT(planned_.ledger->Written(), written);
}

TEST_F(JournalTest, IsGoneWhenTheOutputIsComplete) {
  const auto staging = OpenStaging(false);
  const auto journal = OpenJournal(*staging);
  EXPECT_TRUE(fs::exists(JournalFile()));
  Must(journal->Remove());
  EXPECT_THAT(tests::ReadTree(staging->folder()), IsEmpty());
}

}  // namespace
}  // namespace mergepipe
