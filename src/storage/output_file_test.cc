#include "storage/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::ReadFile;
using tests::Succeeds;
using tests::TempFolder;
using tests::WriteFile;

constexpr uint64_t kPage = 4096;

struct Piece {
  uint64_t offset = 0;
  uint64_t size = 0;
};

// [0, size) in pieces of mixed lengths, in random order.
std::vector<Piece> Shuffled(uint64_t size) {
  std::mt19937_64 random(3);
  std::vector<Piece> pieces;
  for (uint64_t at = 0; at < size;) {
    const uint64_t length = std::min(size - at, 1 + random() % (random() % 2 == 0 ? 200'000 : 3'000));
    pieces.push_back({at, length});
    at += length;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

// Copies of a piece at an address with the file offset's remainder (direct where large), or one beside it.
void WritePiece(OutputFile& file, const std::string& content, const Piece& piece, bool aligned) {
  std::vector<char> memory(piece.size + 3 * kPage);
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  char* at = memory.data() + (kPage - base % kPage) + piece.offset % kPage + (aligned ? 0 : 3);
  std::copy_n(content.data() + piece.offset, piece.size, at);
  Must(file.Write(piece.offset, std::as_bytes(std::span(at, piece.size))));
}

TEST(OutputFile, PiecesWrittenInAnyOrderByManyThreadsMakeTheFile) {
  const TempFolder folder;
  std::mt19937 random(1);
  std::string content((9u << 20) + 777, '\0');
  for (char& byte : content)
    byte = static_cast<char>(random());
  const std::vector<Piece> pieces = Shuffled(content.size());
  Ledger ledger;
  const auto file = Must(CreateOutputFile(folder / "out", content.size(), /*resume=*/false, ledger));
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < pieces.size(); i += 4)
          WritePiece(*file, content, pieces[i], i % 3 != 0);
      });
    }
  }
  EXPECT_THAT(file->Sync(), Succeeds());
  EXPECT_TRUE(ReadFile(folder / "out") == content);
  EXPECT_EQ(ledger.Written(), content.size());
}

TEST(OutputFile, HasItsSizeFromTheStart) {
  const TempFolder folder;
  Ledger ledger;
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{5'000}})
    Must(CreateOutputFile(folder / std::to_string(size), size, false, ledger));
  for (const auto& [name, content] : tests::ReadTree(folder.path()))
    EXPECT_EQ(std::to_string(content.size()), name);
  EXPECT_EQ(ledger.Written(), 0u);
}

TEST(OutputFile, AnExistingFileIsNeverOverwrittenUnlessResumed) {
  const TempFolder folder;
  WriteFile(folder / "out", "precious");
  Ledger ledger;
  EXPECT_THAT(CreateOutputFile(folder / "out", 8, false, ledger), FailsWith(Code::kIo, "can not be created"));
  Must(CreateOutputFile(folder / "out", 8, true, ledger));
  EXPECT_EQ(ReadFile(folder / "out"), "precious");
}

TEST(OutputFile, AResumedFileGetsItsSizeWhateverWasThere) {
  const TempFolder folder;
  Ledger ledger;
  WriteFile(folder / "short", "abc");
  WriteFile(folder / "long", "abcdefghij");
  Must(CreateOutputFile(folder / "short", 5, true, ledger));
  Must(CreateOutputFile(folder / "long", 5, true, ledger));
  EXPECT_EQ(ReadFile(folder / "short"), std::string("abc\0\0", 5));
  EXPECT_EQ(ReadFile(folder / "long"), "abcde");
}

TEST(OutputFile, IsReadableByEveryoneWhomTheUmaskLets) {
  const TempFolder folder;
  Ledger ledger;
  const mode_t before = ::umask(027);
  Must(CreateOutputFile(folder / "out", 1, false, ledger));
  Must(WriteSmallFile(folder / "small", "x", ledger));
  ::umask(before);
  for (const char* name : {"out", "small"}) {
    struct stat info {};
    ASSERT_EQ(::stat((folder / name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0640u) << name;
  }
}

TEST(WriteSmallFile, ReplacesTheContentAndCountsIt) {
  const TempFolder folder;
  Ledger ledger;
  Must(WriteSmallFile(folder / "file", "a longer text", ledger));
  Must(WriteSmallFile(folder / "file", "short", ledger));
  EXPECT_EQ(ReadFile(folder / "file"), "short");
  EXPECT_EQ(ledger.Written(), 18u);
  EXPECT_THAT(WriteSmallFile(folder / "no/such/folder", "x", ledger), FailsWith(Code::kIo, "no/such/folder"));
}

TEST(SyncFolder, NeedsAFolder) {
  const TempFolder folder;
  WriteFile(folder / "file", "");
  EXPECT_THAT(SyncFolder(folder.path()), Succeeds());
  EXPECT_THAT(SyncFolder(folder / "file"), FailsWith(Code::kIo, "file"));
  EXPECT_THAT(SyncFolder(folder / "missing"), FailsWith(Code::kIo, "missing"));
}

}  // namespace
}  // namespace mergepipe
