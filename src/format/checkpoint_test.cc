#include "format/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/text.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using tests::FailsWith;
using tests::IndexText;
using tests::Must;
using tests::SafetensorsOf;
using tests::StoredTensor;
using tests::Succeeds;
using tests::TempFolder;
using tests::WriteFile;

StoredTensor Small(const std::string& name) {
  return tests::TensorOf(name, DType::kF32, {2}, {1, 2});
}

std::vector<std::string> Names(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const auto& [name, place] : checkpoint.tensors())
    names.push_back(name);
  return names;
}

class CheckpointTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Checkpoint>> Open(const std::string& path) {
    return Checkpoint::Open(path, "model", ledger_);
  }
  Result<std::unique_ptr<Checkpoint>> Open() { return Open(folder_.path()); }
  void Write(const std::string& name, const std::string& bytes) { WriteFile(folder_ / name, bytes); }
  void WriteIndex(const std::vector<std::pair<std::string, std::string>>& weight_map) {
    Write(kIndexName, IndexText(weight_map));
  }

  TempFolder folder_;
  Ledger ledger_;
};

// --- what is opened

using OpenedCheckpoint = CheckpointTest;

TEST_F(OpenedCheckpoint, AFolderWithOneFile) {
  tests::WriteCheckpoint(folder_.path(), {Small("b"), Small("a")});
  const auto checkpoint = Must(Open());
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a", "b"));
  EXPECT_FALSE(checkpoint->has_index());
  EXPECT_FALSE(checkpoint->is_single_file());
  EXPECT_EQ(checkpoint->data_bytes(), 16u);
  EXPECT_EQ(checkpoint->folder(), folder_.path());
  EXPECT_EQ(checkpoint->Find("a")->shape, std::vector<uint64_t>{2});
  EXPECT_EQ(checkpoint->Find("c"), nullptr);
}

TEST_F(OpenedCheckpoint, ShardsThatAnIndexNames) {
  tests::WriteSharded(folder_.path(), {{Small("b")}, {Small("a"), Small("c")}});
  const auto checkpoint = Must(Open());
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(checkpoint->has_index());
  ASSERT_EQ(checkpoint->shards().size(), 2u);
  EXPECT_EQ(checkpoint->shards()[1].file_name, "model-00002-of-00002.safetensors");
  EXPECT_EQ(checkpoint->tensors().at("c").shard, 1u);
  EXPECT_EQ(checkpoint->entry(checkpoint->tensors().at("c")).name, "c");
}

TEST_F(OpenedCheckpoint, AnIndexNeedsNoMetadata) {
  Write("one.safetensors", SafetensorsOf({Small("a")}));
  Write(kIndexName, R"({"weight_map": {"a": "one.safetensors"}})");
  EXPECT_THAT(Open(), Succeeds());
}

TEST_F(OpenedCheckpoint, OneFileByItsPath) {
  Write("anything.safetensors", SafetensorsOf({Small("a")}));
  Write("config.json", "{}");
  const auto checkpoint = Must(Open(folder_ / "anything.safetensors"));
  EXPECT_TRUE(checkpoint->is_single_file());
  EXPECT_EQ(checkpoint->folder(), folder_.path());
  EXPECT_TRUE(Must(checkpoint->Config()).is_null());
  EXPECT_THAT(Must(checkpoint->SideFiles()), IsEmpty());
}

TEST_F(OpenedCheckpoint, TheOnlyFileOfAFolderWhateverItsName) {
  Write("diffusion.safetensors", SafetensorsOf({Small("a")}));
  EXPECT_EQ(Must(Open())->shards()[0].file_name, "diffusion.safetensors");
}

TEST_F(OpenedCheckpoint, TheIndexBeforeASingleFileBeside) {
  tests::WriteSharded(folder_.path(), {{Small("a")}});
  Write("consolidated.safetensors", SafetensorsOf({Small("other")}));
  const auto checkpoint = Must(Open());
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a"));
  EXPECT_THAT(checkpoint->notes(),
              ElementsAre("model/consolidated.safetensors: not named by the index, not read"));
}

TEST_F(OpenedCheckpoint, ModelSafetensorsBeforeOthersBeside) {
  Write(kSingleName, SafetensorsOf({Small("a")}));
  Write("adapter.safetensors", SafetensorsOf({Small("b")}));
  const auto checkpoint = Must(Open());
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a"));
  EXPECT_THAT(checkpoint->notes(), ElementsAre(HasSubstr("adapter.safetensors: not part of the checkpoint")));
}

// The Hugging Face cache: a snapshot is a folder of links to blobs.
TEST_F(OpenedCheckpoint, LinksToTheFiles) {
  Write("blobs/1", SafetensorsOf({Small("a")}));
  Write("blobs/2", SafetensorsOf({Small("b")}));
  Write("blobs/3",
        IndexText({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}));
  Write("blobs/4", R"({"model_type": "llama"})");
  fs::create_directories(folder_ / "snapshots/x");
  for (const auto& [blob, name] :
       std::map<std::string, std::string>{{"1", "model-00001-of-00002.safetensors"},
                                          {"2", "model-00002-of-00002.safetensors"},
                                          {"3", kIndexName},
                                          {"4", "config.json"}})
    fs::create_symlink("../../blobs/" + blob, folder_ / ("snapshots/x/" + name));
  const auto checkpoint = Must(Open(folder_ / "snapshots/x"));
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a", "b"));
  EXPECT_EQ(Must(checkpoint->Config())["model_type"], "llama");
  EXPECT_THAT(Must(checkpoint->SideFiles()), ElementsAre("config.json"));
}

TEST_F(OpenedCheckpoint, ALinkToTheFolderOrWithASlashBehind) {
  tests::WriteCheckpoint(folder_ / "real", {Small("a")});
  fs::create_directory_symlink("real", folder_ / "link");
  for (const char* path : {"link", "real/", "link/", "real/../real"})
    EXPECT_THAT(Names(*Must(Open(folder_ / path))), ElementsAre("a")) << path;
  EXPECT_EQ(Must(Checkpoint::Open(folder_ / "real", "experts/a//", ledger_))->name(), "experts/a");
}

TEST_F(OpenedCheckpoint, ChargesItsHeadersToAnAccountOfItsName) {
  tests::WriteSharded(folder_.path(), {{Small("a")}, {Small("b")}});
  const auto checkpoint = Must(Open());
  EXPECT_EQ(ledger_.Name(checkpoint->account()), "model");
  uint64_t headers = fs::file_size(folder_ / kIndexName);
  for (const Shard& shard : checkpoint->shards())
    headers += shard.header.data_start;
  EXPECT_EQ(ledger_.Read(checkpoint->account(), Purpose::kHeader), headers);
  EXPECT_EQ(ledger_.TotalRead(Purpose::kExpertData), 0u);
}

TEST_F(OpenedCheckpoint, TheHeaderDigestKnowsHeadersAndNoPaths) {
  tests::WriteCheckpoint(folder_ / "one", {Small("a")});
  tests::WriteCheckpoint(folder_ / "copy", {tests::TensorOf("a", DType::kF32, {2}, {3, 4})});
  tests::WriteCheckpoint(folder_ / "other", {Small("b")});
  const std::string digest = Must(Open(folder_ / "one"))->HeaderDigest();
  EXPECT_EQ(digest, Must(Open(folder_ / "copy"))->HeaderDigest());
  EXPECT_NE(digest, Must(Open(folder_ / "other"))->HeaderDigest());
}

// --- index against headers

using IndexCheck = CheckpointTest;

TEST_F(IndexCheck, ATensorThatNoShardHoldsIsAFault) {
  Write("one.safetensors", SafetensorsOf({Small("a")}));
  WriteIndex({{"a", "one.safetensors"}, {"ghost", "one.safetensors"}});
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput,
                                "tensor 'ghost' is in one.safetensors, but that shard does not"));
}

TEST_F(IndexCheck, ATensorThatTheIndexDoesNotNameIsAFault) {
  Write("one.safetensors", SafetensorsOf({Small("a"), Small("extra")}));
  WriteIndex({{"a", "one.safetensors"}});
  EXPECT_THAT(Open(),
              FailsWith(Code::kInvalidInput, "one.safetensors: holds the tensor 'extra', which the index"));
}

TEST_F(IndexCheck, AMissingShardIsAFault) {
  Write("one.safetensors", SafetensorsOf({Small("a")}));
  WriteIndex({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "model/two.safetensors: can not be opened"));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "(the index names it)"));
}

TEST_F(IndexCheck, ASupersededCopyIsNotedAndNotRead) {
  Write("one.safetensors", SafetensorsOf({tests::TensorOf("a", DType::kF32, {2}, {7, 7}), Small("b")}));
  Write("two.safetensors", SafetensorsOf({Small("a")}));
  WriteIndex({{"a", "two.safetensors"}, {"b", "one.safetensors"}});
  const auto checkpoint = Must(Open());
  EXPECT_EQ(checkpoint->shards()[checkpoint->tensors().at("a").shard].file_name, "two.safetensors");
  EXPECT_THAT(checkpoint->notes(), ElementsAre(HasSubstr("one.safetensors: its copy of 'a' is superseded")));
  EXPECT_EQ(checkpoint->data_bytes(), 16u);
}

TEST_F(IndexCheck, AStrayShardIsAFault) {
  tests::WriteSharded(folder_.path(), {{Small("a")}});
  Write("model-00003-of-00003.safetensors", SafetensorsOf({Small("z")}));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "model-00003-of-00003.safetensors: is a stray shard"));
}

TEST_F(IndexCheck, AShardNameWithAPathInItIsRefused) {
  WriteFile(folder_ / "secret.safetensors", SafetensorsOf({Small("a")}));
  const std::string inner = folder_ / "inner";
  for (const char* name : {"../secret.safetensors", "sub/one.safetensors", "/etc/passwd", "", ".", "..",
                           "./secret.safetensors", "one.safetensors\\u0000.bin"}) {
    WriteFile(inner + "/" + kIndexName, IndexText({{"a", name}}));
    WriteFile(inner + "/one.safetensors", SafetensorsOf({Small("a")}));
    EXPECT_THAT(Open(inner), FailsWith(Code::kInvalidInput, "shards stand beside their index")) << name;
  }
}

TEST_F(IndexCheck, AShardNameIsAText) {
  Write(kIndexName, R"({"weight_map": {"a": 5, "b": null}})");
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "the shard of tensor 'a' is no text"));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "the shard of tensor 'b' is no text"));
}

TEST_F(IndexCheck, AnIndexWithoutAWeightMapIsRefused) {
  for (const char* text : {"{}", "[]", "null", R"({"weight_map": []})", R"({"weight_map": null})"}) {
    Write(kIndexName, text);
    EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "has no object 'weight_map'")) << text;
  }
}

TEST_F(IndexCheck, AnIndexThatIsNoStrictJsonIsRefused) {
  Write(kIndexName, R"({"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}})");
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "has the key 'a' twice"));
  Write(kIndexName, R"({"weight_map": {)");
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "is not valid JSON"));
  Write(kIndexName, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "Git LFS pointer"));
  fs::remove(folder_ / kIndexName);
  fs::create_symlink("nowhere", folder_ / kIndexName);
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, kIndexName));
}

TEST_F(IndexCheck, AllFaultsAreToldAtOnce) {
  WriteIndex({{"a", "one.safetensors"},
              {"b", "two.safetensors"},
              {"c", "x/y.safetensors"},
              {"d", "gone.safetensors"}});
  Write("one.safetensors", "PK\x03\x04zip");
  Write("two.safetensors", SafetensorsOf({Small("b")}).substr(0, 90));
  const auto opened = Open();
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().faults.size(), 4u);
  for (const char* part :
       {"one.safetensors: is a ZIP", "two.safetensors", "'x/y.safetensors'", "gone.safetensors"})
    EXPECT_THAT(opened, FailsWith(Code::kInvalidInput, part));
}

// --- folders that are no checkpoint

using NoCheckpoint = CheckpointTest;

TEST_F(NoCheckpoint, ThereMustBeSomething) {
  EXPECT_THAT(Open(folder_ / "nowhere"),
              FailsWith(Code::kInvalidInput, "model: there is no such file or folder"));
  EXPECT_THAT(Open(""), FailsWith(Code::kInvalidInput, "there is no such file or folder"));
}

TEST_F(NoCheckpoint, AFolderWithoutWeightsSaysWhatItHolds) {
  EXPECT_THAT(Open(),
              FailsWith(Code::kInvalidInput, "holds no safetensors weights: a checkpoint is a folder with"));
  for (const auto& [file, what] : std::vector<std::pair<std::string, std::string>>{
           {"adapter_config.json", "it is a PEFT adapter"},
           {"tf_model.h5", "HDF5 files (tf_model.h5)"},
           {"q4.gguf", "GGUF files (q4.gguf)"},
           {"last.ckpt", "PyTorch pickles (last.ckpt)"},
           {"consolidated.00.pth", "PyTorch pickles (consolidated.00.pth)"},
           {"rng.pt", "PyTorch pickles (rng.pt)"},
           {"pytorch_model.bin", "PyTorch pickles (pytorch_model.bin)"}}) {
    Write(file, "x");
    EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, what));
  }
}

TEST_F(NoCheckpoint, SeveralFilesWithoutAnIndexAreRefused) {
  Write("a.safetensors", SafetensorsOf({Small("a")}));
  Write("b.safetensors", SafetensorsOf({Small("b")}));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "has 2 safetensors files (a.safetensors, …) but no"));
}

TEST_F(NoCheckpoint, OneOfSeveralShardsIsHalfACheckpoint) {
  Write("model-00001-of-00002.safetensors", SafetensorsOf({Small("a")}));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "is one of 00002 shards but there is no"));
  fs::rename(folder_ / "model-00001-of-00002.safetensors", folder_ / "model-00001-of-00001.safetensors");
  EXPECT_THAT(Open(), Succeeds());
}

TEST_F(NoCheckpoint, AShardNumberOfAnyLengthIsANumber) {
  const std::string name = "model-00001-of-" + std::string(40, '9') + ".safetensors";
  Write(name, SafetensorsOf({Small("a")}));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, name + ": is one of 999"));
}

TEST_F(NoCheckpoint, AForeignFileUnderTheRightNameIsNamed) {
  Write(kSingleName, "\x80\x04\x95" + std::string(40, '\x10'));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "model/model.safetensors: is a Python pickle"));
  EXPECT_THAT(Open(folder_ / kSingleName), FailsWith(Code::kInvalidInput, "model: is a Python pickle"));
}

// --- config and side files

using SideFilesOf = CheckpointTest;

TEST_F(SideFilesOf, AConfigIsReadStrictlyOrIsNull) {
  tests::WriteCheckpoint(folder_.path(), {Small("a")});
  EXPECT_TRUE(Must(Must(Open())->Config()).is_null());
  Write("config.json", R"({"b": 1, "a": 2})");
  EXPECT_EQ(Must(Must(Open())->Config()).dump(), R"({"b":1,"a":2})");
  Write("config.json", R"({"b": 1, "b": 2})");
  EXPECT_THAT(Must(Open())->Config(),
              FailsWith(Code::kInvalidInput, "model/config.json: has the key 'b' twice"));
}

TEST_F(SideFilesOf, EverythingButWeightsIndexesAndHiddenFiles) {
  tests::WriteSharded(folder_.path(), {{Small("a")}});
  for (const char* name :
       {"config.json", "tokenizer.json", "README.md", "1_Pooling/config.json", "assets/deep/er/x.txt",
        ".gitattributes", ".cache/x.json", "assets/.hidden", "pytorch_model.bin",
        "pytorch_model.bin.index.json", "onnx/model.onnx", "onnx/model.onnx_data", "q.gguf", "tf_model.h5",
        "flax_model.msgpack", "assets/extra.safetensors", "x.pt", "rust_model.ot"})
    Write(name, "x");
  EXPECT_THAT(Must(Must(Open())->SideFiles()),
              ElementsAre("1_Pooling/config.json", "README.md", "assets/deep/er/x.txt", "config.json",
                          "tokenizer.json"));
}

TEST_F(SideFilesOf, LinkedFilesAndFoldersAreFollowed) {
  tests::WriteCheckpoint(folder_ / "model", {Small("a")});
  Write("shared/vocab.txt", "x");
  fs::create_symlink("../shared/vocab.txt", folder_ / "model/vocab.txt");
  fs::create_directory_symlink("../shared", folder_ / "model/shared");
  EXPECT_THAT(Must(Must(Open(folder_ / "model"))->SideFiles()), ElementsAre("shared/vocab.txt", "vocab.txt"));
}

TEST_F(SideFilesOf, AFolderStandsUnderEveryNameThatItHas) {
  tests::WriteCheckpoint(folder_ / "model", {Small("a")});
  Write("shared/vocab.txt", "x");
  Write("model/own/a.txt", "x");
  fs::create_directory_symlink("../shared", folder_ / "model/first");
  fs::create_directory_symlink("../shared", folder_ / "model/second");
  fs::create_directory_symlink("own", folder_ / "model/again");
  EXPECT_THAT(Must(Must(Open(folder_ / "model"))->SideFiles()),
              ElementsAre("again/a.txt", "first/vocab.txt", "own/a.txt", "second/vocab.txt"));
}

TEST_F(SideFilesOf, ANameThatIsNoTextIsRefused) {
  tests::WriteCheckpoint(folder_.path(), {Small("a")}, "{}");
  Write("caf\xe9.txt", "x");
  EXPECT_THAT(Must(Open())->SideFiles(),
              FailsWith(Code::kInvalidInput, "model/caf\xe9.txt: the file's name is no UTF-8"));
}

TEST_F(NoCheckpoint, AFileNameThatIsNoTextIsRefused) {
  Write("caf\xe9.safetensors", SafetensorsOf({Small("a")}));
  EXPECT_THAT(Open(), FailsWith(Code::kInvalidInput, "caf\xe9.safetensors: the file's name is no UTF-8"));
}

TEST_F(SideFilesOf, WhatIsNoFileIsLeftOut) {
  tests::WriteCheckpoint(folder_.path(), {Small("a")}, "{}");
  fs::create_symlink("nowhere", folder_ / "dangling.json");
  fs::create_symlink("circle.json", folder_ / "circle.json");
  ASSERT_EQ(::mkfifo((folder_ / "pipe.json").c_str(), 0600), 0);
  EXPECT_THAT(Must(Must(Open())->SideFiles()), ElementsAre("config.json"));
}

TEST_F(SideFilesOf, AFolderThatHoldsItselfEndsSomewhere) {
  tests::WriteCheckpoint(folder_.path(), {Small("a")}, "{}");
  fs::create_directory_symlink(".", folder_ / "self");
  fs::create_directory_symlink(".", folder_ / "me");
  EXPECT_THAT(Must(Must(Open())->SideFiles()), ElementsAre("config.json"));
}

}  // namespace
}  // namespace mergepipe
