#include "format/sniff.h"

#include <gmock/gmock.h>

#include "support/checkpoints.h"

namespace mergepipe {
namespace {

using testing::HasSubstr;
using namespace std::string_view_literals;

TEST(Sniff, NamesWhatIsTakenForSafetensors) {
  EXPECT_THAT(SniffForeignFormat("version https://git-lfs.github.com/spec/v1\n"),
              HasSubstr("Git LFS pointer"));
  EXPECT_THAT(SniffForeignFormat("PK\x03\x04\x14\x00"sv), HasSubstr("ZIP"));
  EXPECT_THAT(SniffForeignFormat("GGUF\x03\x00\x00\x00"sv), HasSubstr("GGUF"));
  EXPECT_THAT(SniffForeignFormat("\x89HDF\r\n\x1a\n"sv), HasSubstr("HDF5"));
  EXPECT_THAT(SniffForeignFormat("\x1f\x8b\x08\x00"sv), HasSubstr("gzip"));
}

TEST(Sniff, APickleOfAnyProtocolIsNamed) {
  // torch.save before 1.6; a dictionary in protocols 2 and 3; frames of protocols 4 and 5.
  for (const auto bytes : {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20"sv, "\x80\x02}q\x00X\x01\x00\x00\x00"sv,
                           "\x80\x03]q\x00(K\x01K\x02"sv, "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}"sv,
                           "\x80\x05\x95\x00\x10\x00\x00\x00\x00\x00\x00}"sv})
    EXPECT_THAT(SniffForeignFormat(bytes), HasSubstr("pickle"));
}

TEST(Sniff, AWebPageIsNamedInAnyCaseAndAfterBlanks) {
  for (const char* text : {"<!DOCTYPE html><html>", "<!doctype HTML>", "<HTML lang=en>", "\r\n  <html>",
                           "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>"})
    EXPECT_THAT(SniffForeignFormat(text), HasSubstr("HTML page")) << text;
}

TEST(Sniff, SafetensorsAndTheUnknownAreNotNamed) {
  for (const auto bytes : {""sv, "x"sv, "\x80"sv, "{}"sv, "<"sv, "plain text"sv, "\0\0\0\0\0\0\0\0"sv})
    EXPECT_EQ(SniffForeignFormat(bytes), "");
  for (size_t length = 2; length < 70'000; ++length)
    ASSERT_EQ(
        SniffForeignFormat(tests::RawSafetensors("{}", "").replace(
            0, 3,
            {static_cast<char>(length), static_cast<char>(length >> 8), static_cast<char>(length >> 16)})),
        "")
        << length;
}

}  // namespace
}  // namespace mergepipe
