#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>

#include "storage/source.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::TempFolder;
using tests::WriteFile;

constexpr uint64_t kPage = Source::kAlignment;

// Memory at a multiple of kAlignment, shifted by `shift`.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes, size_t shift = 0) : memory_(bytes + 2 * kPage), size_(bytes) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    start_ = memory_.data() + (kPage - at % kPage) % kPage + shift;
  }
  std::span<std::byte> span() { return {start_, size_}; }

 private:
  std::vector<std::byte> memory_;
  std::byte* start_;
  uint64_t size_;
};

std::string RandomBytes(size_t count) {
  std::mt19937_64 random(11);
  std::string bytes(count, '\0');
  for (char& byte : bytes)
    byte = static_cast<char>(random());
  return bytes;
}

std::string_view Text(const ReadRange& range, uint64_t size) {
  return {reinterpret_cast<const char*>(range.data), size};
}

// Every kind of range: at page borders and between, short and long, at the very start and end.
void ExpectRangesOf(const std::string& content, const Source& source, size_t shift) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const uint64_t size = random() % (round % 2 == 0 ? 300'000 : 5'000) % content.size();
    uint64_t offset = random() % (content.size() - size);
    if (round % 5 == 0) offset = offset / kPage * kPage;
    if (round % 7 == 0) offset = content.size() - size;
    Buffer buffer(Source::BufferBytes(size), shift);
    const ReadRange range = Must(source.Read(offset, size, buffer.span()));
    ASSERT_EQ(Text(range, size), std::string_view(content).substr(offset, size)) << offset << "+" << size;
    EXPECT_GE(range.data, buffer.span().data());
    EXPECT_LE(range.data + size, buffer.span().data() + buffer.span().size());
    EXPECT_LT(range.alignment_bytes, 2 * kPage);
  }
}

TEST(LocalSource, ReadsAnyRangeOfASmallFile) {
  const TempFolder folder;
  const std::string content = RandomBytes(700'001);
  WriteFile(folder / "small", content);
  const auto source = Must(OpenLocalSource(folder / "small", "small"));
  EXPECT_EQ(source->Size(), content.size());
  ExpectRangesOf(content, *source, 0);
}

TEST(LocalSource, ReadsAnyRangeOfALargeFileWhateverTheBuffersAddress) {
  const TempFolder folder;
  const std::string content = RandomBytes((9u << 20) + 123);
  WriteFile(folder / "large", content);
  const auto source = Must(OpenLocalSource(folder / "large", "large"));
  for (const size_t shift : {size_t{0}, size_t{1}, size_t{512}})
    ExpectRangesOf(content, *source, shift);
}

TEST(LocalSource, EmptyRangesAreReadAnywhereInTheFile) {
  const TempFolder folder;
  WriteFile(folder / "empty", "");
  const auto source = Must(OpenLocalSource(folder / "empty", "empty"));
  Buffer buffer(Source::BufferBytes(0));
  EXPECT_THAT(source->Read(0, 0, buffer.span()), tests::Succeeds());
  EXPECT_THAT(source->Read(1, 0, buffer.span()), FailsWith(Code::kInvalidInput, "empty: ends before byte 1"));
}

TEST(LocalSource, BufferBytesHoldTheAlignedHullOfEveryRange) {
  for (uint64_t size = 0; size < 3 * kPage; size += 7) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kPage / 2, kPage - 1}) {
      const uint64_t hull = (offset + size + kPage - 1) / kPage * kPage;
      EXPECT_LE(hull, Source::BufferBytes(size)) << offset << "+" << size;
    }
  }
}

TEST(LocalSource, RangesBeyondTheEndNameTheFile) {
  const TempFolder folder;
  WriteFile(folder / "file", "12345678");
  const auto source = Must(OpenLocalSource(folder / "file", "experts/a"));
  Buffer buffer(Source::BufferBytes(64));
  EXPECT_THAT(source->Read(4, 5, buffer.span()),
              FailsWith(Code::kInvalidInput, "experts/a: ends before byte 9"));
  EXPECT_THAT(source->Read(UINT64_MAX, 2, buffer.span()), FailsWith(Code::kInvalidInput, "experts/a"));
  EXPECT_THAT(source->Read(2, UINT64_MAX, buffer.span()), FailsWith(Code::kInvalidInput, "experts/a"));
}

// Cut in the middle of a page, so that a direct read comes back short and unaligned.
TEST(LocalSource, AFileThatBecameShorterIsAnInvalidInput) {
  for (const uint64_t size : {uint64_t{50'000}, uint64_t{9u << 20}}) {
    const TempFolder folder;
    WriteFile(folder / "shrinks", std::string(size, 'x'));
    const auto source = Must(OpenLocalSource(folder / "shrinks", "shrinks"));
    std::filesystem::resize_file(folder / "shrinks", size / 2 + 100);
    Buffer buffer(Source::BufferBytes(size));
    EXPECT_THAT(source->Read(0, size, buffer.span()), FailsWith(Code::kInvalidInput, "was it changed"));
    EXPECT_THAT(source->Read(0, size / 2 + 100, buffer.span()), tests::Succeeds());
  }
}

TEST(LocalSource, TheStampTellsAnotherFileFromTheSame) {
  const TempFolder folder;
  WriteFile(folder / "file", "content");
  const FileStamp stamp = Must(OpenLocalSource(folder / "file", "file"))->Stamp();
  EXPECT_EQ(Must(OpenLocalSource(folder / "file", "file"))->Stamp(), stamp);

  const timespec times[2] = {{.tv_sec = 5, .tv_nsec = 1}, {.tv_sec = 5, .tv_nsec = 1}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder / "file").c_str(), times, 0), 0);
  const FileStamp touched = Must(OpenLocalSource(folder / "file", "file"))->Stamp();
  EXPECT_FALSE(touched == stamp);
  EXPECT_EQ(touched.mtime_ns, 5'000'000'001);

  WriteFile(folder / "other", "content");
  EXPECT_FALSE(Must(OpenLocalSource(folder / "other", "other"))->Stamp() == touched);
}

TEST(LocalSource, SymbolicLinksAreFollowed) {
  const TempFolder folder;
  WriteFile(folder / "blob", "content");
  std::filesystem::create_symlink("blob", folder / "link");
  EXPECT_EQ(Must(OpenLocalSource(folder / "link", "link"))->Size(), 7u);
}

TEST(LocalSource, WhatIsNoFileIsAnInvalidInput) {
  const TempFolder folder;
  WriteFile(folder / "file", "");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  std::filesystem::create_symlink("loop", folder / "loop");
  for (const char* name : {"missing", "file/child", "dangling", "loop"})
    EXPECT_THAT(OpenLocalSource(folder / name, "it"), FailsWith(Code::kInvalidInput, "it: can not be opened"))
        << name;
  EXPECT_THAT(OpenLocalSource(folder.path(), "it"),
              FailsWith(Code::kInvalidInput, "it: is not a regular file"));
}

TEST(LocalSource, APipeIsRefusedAtOnceInsteadOfWaitedFor) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(OpenLocalSource(folder / "pipe", "pipe"),
              FailsWith(Code::kInvalidInput, "pipe: is not a regular file"));
}

TEST(ReadSmallFile, ReadsAllOrRefusesAboveTheLimit) {
  const TempFolder folder;
  const std::string content = RandomBytes(10'000);
  WriteFile(folder / "file", content);
  EXPECT_EQ(Must(ReadSmallFile(folder / "file", content.size())), content);
  EXPECT_THAT(ReadSmallFile(folder / "file", content.size() - 1),
              FailsWith(Code::kInvalidInput, "has 10000 bytes, more than the 9999"));
  WriteFile(folder / "empty", "");
  EXPECT_EQ(Must(ReadSmallFile(folder / "empty", 0)), "");
}

}  // namespace
}  // namespace mergepipe
