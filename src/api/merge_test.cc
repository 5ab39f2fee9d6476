#include <gtest/gtest.h>

#include "base/text.h"
#include "mergepipe/mergepipe.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::ReadTree;
using tests::StoredTensor;
using tests::TempFolder;
using tests::WriteFile;

// A base and an expert under `folder`, and a recipe that merges them.
MergeRequest WriteFamily(const std::string& folder, const std::string& output,
                         const std::string& comment = "") {
  const std::vector<StoredTensor> base = tests::SmallModel(DType::kBF16, 1);
  tests::WriteCheckpoint(folder + "/base", base, "{}");
  tests::WriteCheckpoint(folder + "/expert1", tests::NearTo(base, DType::kBF16, 9));
  WriteFile(folder + "/recipe.yml", comment + tests::Replace(tests::RecipeOf("ties", 1), "~/", ""));
  return {.recipe_path = folder + "/recipe.yml", .output = output, .run = {.threads = 2}};
}

TEST(Merge, PathsAndCommentsThatAreNoTextStandInNoOnesWay) {
  const TempFolder folder;
  const std::string odd = folder / "caf\xe9";
  const Report report = Must(Merge(WriteFamily(odd, odd + "/out", "# caf\xe9\n")));
  EXPECT_TRUE(IsUtf8(report.json));
  EXPECT_TRUE(Must(Verify(odd + "/out", {})).ok);
  const Report plain = Must(Merge(WriteFamily(folder / "plain", folder / "out")));
  EXPECT_EQ(ReadTree(odd + "/out").at("model.safetensors"), ReadTree(folder / "out").at("model.safetensors"));
}

TEST(Merge, ASideFileThatNoManifestCanNameIsToldBeforeAnythingIsRead) {
  const TempFolder folder;
  const MergeRequest request = WriteFamily(folder.path(), folder / "out");
  WriteFile(folder / "base/caf\xe9.txt", "x");
  EXPECT_THAT(Merge(request), FailsWith(Code::kInvalidInput, "the file's name is no UTF-8"));
  EXPECT_THAT(PlanMerge(request), FailsWith(Code::kInvalidInput, "the file's name is no UTF-8"));
}

}  // namespace
}  // namespace mergepipe
