#include "txn/manifest_shape.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace mergepipe {
namespace {

Json Tensor() {
  return {{"name", "w"},
          {"file", "model.safetensors"},
          {"dtype", "BF16"},
          {"shape", {40, 5000}},
          {"leaf_bytes", 16384},
          {"rule", "merged"},
          {"digest", "d"},
          {"chunks", {"a", "b"}},  // 400,000 bytes: 25 leaves
          {"sources", {{{"input", 0}, {"tensor", "w"}, {"digest", "s"}}}},
          {"decision", Json::object()},
          {"thresholds", {{{"input", 0}, {"magnitude", 0.5}, {"equals", 7}, {"equals_kept", 3}}}}};
}

Json Sound() {
  return {{"schema", "mergepipe.manifest/1"},
          {"root_digest", "r"},
          {"envelope_digest", "e"},
          {"core",
           {{"version", "1"},
            {"method", "ties"},
            {"plan_digest", "p"},
            {"seed", 0},
            {"block_bytes", 1048576},
            {"budget", Json::object()},
            {"inputs", {{{"header_digest", "h"}, {"role", "base"}}}},
            {"units", {{{"file", "model.safetensors"}, {"bytes", 5}, {"header_digest", "h"}}}},
            {"tensors", {Tensor()}},
            {"files", {{"1_Pooling/config.json", {{"digest", "f"}, {"bytes", 2}}}}}}},
          {"envelope",
           {{"recipe", "text"},
            {"recipe_path", "r.yml"},
            {"options",
             {{"allow_nonfinite", false},
              {"missing", "base"},
              {"memory_bytes", 5},
              {"form", {{"shard_bytes", nullptr}, {"copies_tokenizer", true}, {"writes_card", true}}}}},
            {"paths", {{"base", "/models/base"}}},
            {"notes", {{"README.md", {{"digest", "n"}, {"bytes", 3}}}}}}}};
}

using Pointer = Json::json_pointer;

// As it comes from a file, where whole numbers have no sign.
std::string FaultOf(const Json& manifest) {
  return MisshapenField(Json::parse(manifest.dump()));
}

// What is found once the value at `pointer` is another, or gone.
std::string With(const std::string& pointer, const Json& value) {
  Json manifest = Sound();
  manifest[Pointer(pointer)] = value;
  return FaultOf(manifest);
}
std::string Without(const std::string& pointer) {
  Json manifest = Sound();
  const Pointer at(pointer);
  manifest[at.parent_pointer()].erase(at.back());
  return FaultOf(manifest);
}

TEST(ManifestShape, ASoundManifestHasNoFault) {
  EXPECT_EQ(FaultOf(Sound()), "");
}

TEST(ManifestShape, EveryFieldThatIsReadMustBeThereAndOfItsKind) {
  for (const char* pointer : {"/root_digest",
                              "/core",
                              "/envelope",
                              "/core/version",
                              "/core/method",
                              "/core/plan_digest",
                              "/core/seed",
                              "/core/block_bytes",
                              "/core/inputs",
                              "/core/inputs/0/header_digest",
                              "/core/units",
                              "/core/units/0/file",
                              "/core/units/0/bytes",
                              "/core/units/0/header_digest",
                              "/core/tensors",
                              "/core/tensors/0/name",
                              "/core/tensors/0/file",
                              "/core/tensors/0/dtype",
                              "/core/tensors/0/shape",
                              "/core/tensors/0/leaf_bytes",
                              "/core/tensors/0/rule",
                              "/core/tensors/0/digest",
                              "/core/tensors/0/chunks",
                              "/core/tensors/0/sources",
                              "/core/tensors/0/sources/0/digest",
                              "/core/tensors/0/thresholds",
                              "/core/tensors/0/thresholds/0/magnitude",
                              "/core/tensors/0/thresholds/0/equals",
                              "/core/files",
                              "/envelope/recipe",
                              "/envelope/recipe_path",
                              "/envelope/options",
                              "/envelope/options/allow_nonfinite",
                              "/envelope/paths",
                              "/envelope/notes",
                              "/envelope/notes/README.md/digest"}) {
    EXPECT_NE(Without(pointer), "") << pointer;
    for (const Json& other : {Json(), Json::array({Json::array()}), Json({{"a", {1}}})})
      EXPECT_NE(With(pointer, other), "") << pointer << " " << other;
  }
}

TEST(ManifestShape, TheFaultIsNamed) {
  EXPECT_EQ(Without("/core/tensors"), "core.tensors");
  EXPECT_EQ(With("/core/tensors/0/leaf_bytes", "x"), "core.tensors[0].leaf_bytes");
  EXPECT_EQ(With("/core/files/1_Pooling~1config.json", 5), "core.files.1_Pooling/config.json.digest");
}

TEST(ManifestShape, ListsHoldTheirKindAlone) {
  EXPECT_EQ(With("/core/tensors/0/shape", {40, "x"}), "core.tensors[0].shape");
  EXPECT_EQ(With("/core/tensors/0/chunks", {"a", 5}), "core.tensors[0].chunks");
  EXPECT_EQ(With("/core/units/0", 5), "core.units[0].file");
  EXPECT_EQ(With("/envelope/paths", {{"base", 5}}), "envelope.paths");
}

TEST(ManifestShape, ChunksAreAsManyAsTheTensorHas) {
  for (const Json& chunks : {Json::array(), Json({"a"}), Json({"a", "b", "c"})})
    EXPECT_EQ(With("/core/tensors/0/chunks", chunks), "core.tensors[0].chunks");
  for (const Json& leaf_bytes : {Json(0), Json(1), Json(7), Json(1ull << 62)})
    EXPECT_EQ(With("/core/tensors/0/leaf_bytes", leaf_bytes), "core.tensors[0].chunks") << leaf_bytes;
  EXPECT_EQ(With("/core/tensors/0/shape", {1ull << 40, 1ull << 40}), "core.tensors[0].chunks");
  EXPECT_EQ(With("/core/tensors/0/dtype", "F128"), "core.tensors[0].chunks");
}

TEST(ManifestShape, FilesStandInTheFolder) {
  for (const char* path : {"", "/etc/passwd", "../x", "a/../../x", "a//b", ".", "a/.", "a/"}) {
    EXPECT_EQ(With("/core/units/0/file", path), "core.units[0].file") << path;
    Json manifest = Sound();
    manifest["core"]["files"][path] = {{"digest", "f"}, {"bytes", 2}};
    EXPECT_EQ(FaultOf(manifest), Format("core.files.{}.", path)) << path;
  }
  EXPECT_EQ(With("/core/tensors/0/file", "sub/model.safetensors"), "core.tensors[0].file");
}

TEST(ManifestShape, WhatIsNoObjectHasNoFields) {
  for (const Json& manifest : {Json(), Json(5), Json::array(), Json("text")})
    EXPECT_NE(FaultOf(manifest), "");
}

}  // namespace
}  // namespace mergepipe
