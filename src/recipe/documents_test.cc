#include "recipe/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mergepipe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Texts(const std::string& stream) {
  std::vector<std::string> texts;
  for (const RecipeDocument& document : SplitDocuments(stream))
    texts.push_back(document.text);
  return texts;
}

std::vector<int> Lines(const std::string& stream) {
  std::vector<int> lines;
  for (const RecipeDocument& document : SplitDocuments(stream))
    lines.push_back(document.first_line);
  return lines;
}

TEST(Documents, OneIsTheWholeStream) {
  for (const char* stream :
       {"a: 1", "a: 1\n", "# c\n---\na: 1\n", "%YAML 1.1\n---\na: 1\n...\n", "---\n---\na: 1\n---\n",
        "a: 1\n--- # nothing\n", "\xef\xbb\xbf# c\n---\r\na: 1\r\n"})
    EXPECT_THAT(Texts(stream), ElementsAre(stream));
}

TEST(Documents, AreCutAtTheirMarks) {
  EXPECT_THAT(Texts("a: 1\n---\nb: 2\n"), ElementsAre("a: 1\n", "   \nb: 2\n"));
  EXPECT_THAT(Texts("a: 1\n...\nb: 2"), ElementsAre("a: 1\n", "   \nb: 2"));
  EXPECT_THAT(Texts("--- {a: 1}\n--- {b: 2}"), ElementsAre("    {a: 1}\n", "    {b: 2}"));
  EXPECT_THAT(Texts("a: 1\r\n---\r\nb: 2\r\n"), ElementsAre("a: 1\r\n", "   \r\nb: 2\r\n"));
}

TEST(Documents, KnowTheirFirstLine) {
  EXPECT_THAT(Lines("a: 1\n---\nb: 2\n---\nc: 3"), ElementsAre(1, 2, 4));
  EXPECT_THAT(Lines("# x\n\n---\na: 1\n---\n# y\n---\nc: 3"), ElementsAre(3, 7));
}

TEST(Documents, OnlyWholeMarksAtTheStartOfALineCut) {
  for (const char* stream :
       {"a: 1\n ---\nb: 2", "a: 1\n----\nb: 2", "a: 1\n---x\nb: 2", "a: --- b\n", "a: 1\n..\nb: 2"})
    EXPECT_THAT(Texts(stream), ElementsAre(stream));
}

TEST(Documents, OfAnEmptyStreamAreNone) {
  for (const char* stream : {"", "\n", "# c\n", "---\n...\n---"})
    EXPECT_THAT(Texts(stream), IsEmpty());
}

}  // namespace
}  // namespace mergepipe
