#include "format/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <regex>
#include <set>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "format/sniff.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMaxIndexBytes = 512u << 20;
constexpr int kMaxSideFileDepth = 8;

// Weights in other formats, and what loaders would take for weights: never copied beside merged ones.
const std::set<std::string>& WeightSuffixes() {
  static const std::set<std::string> suffixes = {
      ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".npz"};
  return suffixes;
}

bool IsWeightOrIndex(const fs::path& path) {
  const std::string name = path.filename().string();
  return WeightSuffixes().count(path.extension().string()) > 0 || EndsWith(name, ".index.json") ||
         EndsWith(name, ".onnx_data");
}

std::vector<std::string> FilesEndingWith(const fs::path& folder, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (EndsWith(name, suffix) && !StartsWith(name, ".")) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool IsAtMostOne(const std::string& digits) {
  const auto number = ParseUnsigned(digits);
  return number && *number <= 1;
}

// True for a link to a folder that it stands in: followed, it would go round for ever.
bool LeadsBack(const fs::path& link) {
  std::error_code error;
  if (!fs::is_symlink(link, error)) return false;
  const fs::path target = fs::canonical(link, error);
  if (error) return false;
  const fs::path here = fs::canonical(link.parent_path(), error);
  return std::mismatch(target.begin(), target.end(), here.begin(), here.end()).first == target.end();
}

Failure NameIsNoText(const std::string& file) {
  return Fail(Code::kInvalidInput,
              Format("{}: the file's name is no UTF-8 text, so no manifest can name it; rename it", file));
}

// What stands in a folder without safetensors: names what a person probably tried to use.
std::string AdviceForFolder(const fs::path& folder) {
  for (const auto& [suffix, what] :
       std::vector<std::pair<std::string, std::string>>{{".bin", "PyTorch pickles"},
                                                        {".pt", "PyTorch pickles"},
                                                        {".pth", "PyTorch pickles"},
                                                        {".ckpt", "PyTorch pickles"},
                                                        {".gguf", "GGUF files"},
                                                        {".h5", "HDF5 files"}}) {
    const auto names = FilesEndingWith(folder, suffix);
    if (!names.empty())
      return Format("it has {} ({}); convert them to safetensors first", what, names.front());
  }
  if (Exists(folder / "adapter_config.json"))
    return "it is a PEFT adapter, which this version does not merge";
  return "a checkpoint is a folder with model.safetensors or model.safetensors.index.json, or one "
         ".safetensors file";
}

// A file that will be written: its header is known, its data is not there.
class PlannedSource final : public Source {
 public:
  PlannedSource(const PlannedShard& shard, std::string name)
      : prefix_(shard.prefix), size_(shard.file_size), name_(std::move(name)) {}

  const std::string& Describe() const override { return name_; }
  uint64_t Size() const override { return size_; }
  const FileStamp& Stamp() const override { return stamp_; }
  Result<ReadRange> Read(uint64_t offset, uint64_t size, std::span<std::byte> buffer) const override {
    if (offset > prefix_.size() || size > prefix_.size() - offset)
      return Fail(Code::kInternal, Format("{}: its data was asked for before it was made", name_));
    std::memcpy(buffer.data(), prefix_.data() + offset, size);
    return ReadRange{buffer.data(), 0};
  }

 private:
  std::string prefix_;
  uint64_t size_;
  std::string name_;
  FileStamp stamp_;
};

}  // namespace

/// Collects all faults of one checkpoint while it is opened.
class CheckpointOpener {
 public:
  CheckpointOpener(Checkpoint& checkpoint, Ledger& ledger) : c_(checkpoint), ledger_(ledger) {}

  void TakeAllTensors() {
    for (size_t s = 0; s < c_.shards_.size(); ++s) {
      const auto& entries = c_.shards_[s].header.tensors;
      for (size_t i = 0; i < entries.size(); ++i)
        c_.tensors_.emplace(entries[i].name, TensorPlace{s, i});
    }
  }

  Result<void> Run(const std::string& path) {
    std::error_code error;
    const fs::path absolute = fs::absolute(path, error).lexically_normal();
    const fs::file_status status = fs::status(absolute, error);
    if (!fs::exists(status))
      return Fail(Code::kInvalidInput, Format("{}: there is no such file or folder", c_.name_));
    c_.account_ = ledger_.AddAccount(c_.name_);
    if (!fs::is_directory(status)) {
      c_.single_file_ = true;
      c_.folder_ = absolute.parent_path().string();
      OpenShard(absolute.filename().string(), c_.name_);
      TakeAllTensors();
    } else {
      c_.folder_ = absolute.string();
      if (c_.folder_.size() > 1 && c_.folder_.back() == '/') c_.folder_.pop_back();
      MP_TRY(OpenFolder());
    }
    return Verdict();
  }

 private:
  Result<void> OpenFolder() {
    const fs::path folder = c_.folder_;
    if (Exists(folder / kIndexName) || fs::is_symlink(folder / kIndexName)) return OpenIndexed();
    if (Exists(folder / kSingleName) || fs::is_symlink(folder / kSingleName)) {
      OpenShard(kSingleName, c_.name_ + "/" + kSingleName);
      CheckUnindexed({kSingleName});
      TakeAllTensors();
      return {};
    }
    const auto names = FilesEndingWith(folder, ".safetensors");
    if (names.empty())
      return Fail(Code::kInvalidInput,
                  Format("{}: holds no safetensors weights: {}", c_.name_, AdviceForFolder(folder)));
    if (names.size() > 1) {
      return Fail(Code::kInvalidInput, Format("{}: has {} safetensors files ({}, …) but no {}; without the "
                                              "index nobody knows which belong together",
                                              c_.name_, names.size(), names.front(), kIndexName));
    }
    OpenShard(names.front(), c_.name_ + "/" + names.front());
    CheckUnindexed(names);
    TakeAllTensors();
    return {};
  }

  // "model-00001-of-00002.safetensors" alone is half a checkpoint.
  void CheckUnindexed(const std::vector<std::string>& names) {
    static const std::regex kNumbered(R"(.*-(\d+)-of-(\d+)\.safetensors)");
    for (const std::string& name : names) {
      std::smatch match;
      if (std::regex_match(name, match, kNumbered) && !IsAtMostOne(match[2].str())) {
        Fault(Format("{}/{}: is one of {} shards but there is no {}", c_.name_, name, match[2].str(),
                     kIndexName));
      }
    }
    for (const std::string& other : FilesEndingWith(c_.folder_, ".safetensors")) {
      if (other != names.front())
        c_.notes_.push_back(Format("{}/{}: not part of the checkpoint, not read", c_.name_, other));
    }
  }

  Result<void> OpenIndexed() {
    const std::string where = c_.name_ + "/" + kIndexName;
    auto text = ReadSmallFile(c_.folder_ + "/" + kIndexName, kMaxIndexBytes);
    if (!text) return Fail(Code::kInvalidInput, Format("{}: {}", where, text.error().message));
    ledger_.Charge(c_.account_, Purpose::kHeader, text->size());
    const std::string foreign = SniffForeignFormat(*text);
    if (!foreign.empty()) return Fail(Code::kInvalidInput, Format("{}: {}", where, foreign));
    c_.index_ = MP_TRY(ParseJson(*text, where));
    const bool has_map =
        c_.index_->is_object() && c_.index_->contains("weight_map") && (*c_.index_)["weight_map"].is_object();
    if (!has_map) return Fail(Code::kInvalidInput, Format("{}: has no object 'weight_map'", where));
    OpenShardsOf((*c_.index_)["weight_map"], where);
    CheckShardTotals();
    if (faults_.empty()) TakeIndexedTensors((*c_.index_)["weight_map"], where);
    NoteStrayShards();
    return {};
  }

  void OpenShardsOf(const Json& weight_map, const std::string& where) {
    std::set<std::string> files;
    for (const auto& [tensor, file] : weight_map.items()) {
      if (!file.is_string()) {
        Fault(Format("{}: the shard of tensor '{}' is no text", where, tensor));
      } else if (const auto name = file.get<std::string>();
                 name.empty() || name.find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
                 name == "." || name == "..") {
        Fault(Format("{}: the shard '{}' of tensor '{}' is a path; shards stand beside their index", where,
                     name, tensor));
      } else {
        files.insert(name);
      }
    }
    for (const std::string& file : files)
      OpenShard(file, c_.name_ + "/" + file);
  }

  void OpenShard(const std::string& file, const std::string& name) {
    if (!IsUtf8(file)) return Fault(NameIsNoText(name).error.message);
    auto source = OpenLocalSource(c_.folder_ + "/" + file, name);
    if (!source) {
      Fault(c_.has_index() ? Format("{} (the index names it)", source.error().message)
                           : source.error().message);
      return;
    }
    auto header = ReadSafetensorsHeader(**source, ledger_, c_.account_);
    if (!header) {
      Fault(header.error().message);
      return;
    }
    c_.shards_.push_back(Shard{file, std::move(*source), std::move(*header)});
  }

  void TakeIndexedTensors(const Json& weight_map, const std::string& where) {
    for (size_t s = 0; s < c_.shards_.size(); ++s) {
      const Shard& shard = c_.shards_[s];
      for (size_t i = 0; i < shard.header.tensors.size(); ++i) {
        const std::string& tensor = shard.header.tensors[i].name;
        if (!weight_map.contains(tensor)) {
          Fault(Format("{}/{}: holds the tensor '{}', which the index does not name", c_.name_,
                       shard.file_name, tensor));
        } else if (weight_map[tensor] != shard.file_name) {
          c_.notes_.push_back(Format("{}/{}: its copy of '{}' is superseded (the index names {})", c_.name_,
                                     shard.file_name, tensor, weight_map[tensor].get<std::string>()));
        } else {
          c_.tensors_.emplace(tensor, TensorPlace{s, i});
        }
      }
    }
    for (const auto& [tensor, file] : weight_map.items()) {
      if (c_.tensors_.count(tensor) == 0) {
        Fault(Format("{}: says that tensor '{}' is in {}, but that shard does not hold it", where, tensor,
                     file.get<std::string>()));
      }
    }
  }

  // File names that promise more shards than the index names: the copy, or its index, is incomplete.
  void CheckShardTotals() {
    static const std::regex kNumbered(R"(.*-(\d+)-of-(\d{1,9})\.safetensors)");
    for (const Shard& shard : c_.shards_) {
      std::smatch match;
      if (!std::regex_match(shard.file_name, match, kNumbered)) continue;
      const size_t total = std::stoul(match[2]);
      if (total == c_.shards_.size()) continue;
      c_.notes_.push_back(
          Format("{}/{}: its name counts {} shards but the index names {}; is the checkpoint complete?",
                 c_.name_, shard.file_name, total, c_.shards_.size()));
      return;
    }
  }

  // Files named like shards that the index does not know: another save's leftovers, or a shard that the index
  // lost.
  void NoteStrayShards() {
    static const std::regex kShardName(R"(model-\d+-of-\d+\.safetensors)");
    for (const std::string& name : FilesEndingWith(c_.folder_, ".safetensors")) {
      const bool known = std::any_of(c_.shards_.begin(), c_.shards_.end(),
                                     [&](const Shard& s) { return s.file_name == name; });
      if (known || !faults_.empty()) continue;
      if (std::regex_match(name, kShardName)) {
        Fault(Format("{}/{}: is a stray shard that the index does not name; remove it or restore its index",
                     c_.name_, name));
      } else {
        c_.notes_.push_back(Format("{}/{}: not named by the index, not read", c_.name_, name));
      }
    }
  }

  void Fault(std::string text) { faults_.push_back(std::move(text)); }

  Result<void> Verdict() {
    if (faults_.empty()) return {};
    if (faults_.size() == 1) return Fail(Code::kInvalidInput, faults_.front());
    return Fail(Error{Code::kInvalidInput, Format("{}: has {} faults", c_.name_, faults_.size()), faults_});
  }

  Checkpoint& c_;
  Ledger& ledger_;
  std::vector<std::string> faults_;
};

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path, const std::string& name,
                                                     Ledger& ledger) {
  auto checkpoint = std::make_unique<Checkpoint>();
  checkpoint->name_ = name;
  while (checkpoint->name_.size() > 1 && checkpoint->name_.back() == '/')
    checkpoint->name_.pop_back();
  MP_TRY(CheckpointOpener(*checkpoint, ledger).Run(path));
  return checkpoint;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::OpenPlanned(std::shared_ptr<const PlannedCheckpoint> planned,
                                                            const std::string& name, Ledger& ledger) {
  auto checkpoint = std::make_unique<Checkpoint>();
  checkpoint->name_ = name;
  checkpoint->folder_ = planned->folder;
  checkpoint->index_ = planned->index;
  checkpoint->account_ = ledger.AddAccount(name);
  for (const PlannedShard& shard : planned->shards) {
    auto source = std::make_unique<PlannedSource>(shard, name + "/" + shard.file_name);
    auto header = MP_TRY(ReadSafetensorsHeader(*source, ledger, checkpoint->account_));
    checkpoint->shards_.push_back(Shard{shard.file_name, std::move(source), std::move(header)});
  }
  checkpoint->planned_ = std::move(planned);
  CheckpointOpener(*checkpoint, ledger).TakeAllTensors();
  return checkpoint;
}

void Checkpoint::Rename(const std::map<std::string, std::string>& names) {
  for (const auto& [stored, name] : names) {
    auto node = tensors_.extract(stored);
    node.key() = name;
    tensors_.insert(std::move(node));
  }
}

const TensorEntry* Checkpoint::Find(const std::string& tensor_name) const {
  const auto found = tensors_.find(tensor_name);
  return found == tensors_.end() ? nullptr : &entry(found->second);
}

uint64_t Checkpoint::data_bytes() const {
  uint64_t total = 0;
  for (const auto& [name, place] : tensors_)
    total += entry(place).bytes();
  return total;
}

Result<OrderedJson> Checkpoint::Config() const {
  const auto text = MP_TRY(ReadSideFile(kConfigName));
  if (!text) return OrderedJson();
  return ParseOrderedJson(*text, name_ + "/" + kConfigName);
}

std::optional<SideFileOrigin> Checkpoint::OriginOf(const std::string& side_file) const {
  if (planned_ != nullptr) {
    const auto found = planned_->side_files.find(side_file);
    return found == planned_->side_files.end() ? std::nullopt : std::optional(found->second);
  }
  const std::string path = folder_ + "/" + side_file;
  if (single_file_ || !Exists(path)) return std::nullopt;
  return SideFileOrigin{std::nullopt, path};
}

Result<std::optional<std::string>> Checkpoint::ReadSideFile(const std::string& side_file,
                                                            uint64_t limit) const {
  auto origin = OriginOf(side_file);
  if (!origin) return std::optional<std::string>();
  if (origin->text) return std::move(origin->text);
  return std::optional(MP_TRY(ReadSmallFile(origin->path, limit)));
}

Result<std::vector<std::string>> Checkpoint::SideFiles() const {
  std::vector<std::string> files;
  if (planned_ != nullptr) {
    for (const auto& [name, origin] : planned_->side_files)
      files.push_back(name);
    return files;
  }
  if (single_file_) return files;
  std::error_code error;
  const auto options = fs::directory_options::follow_directory_symlink;
  for (fs::recursive_directory_iterator it(folder_, options, error), end; !error && it != end;
       it.increment(error)) {
    const bool hidden = StartsWith(it->path().filename().string(), ".");
    std::error_code unreadable;
    if (it->is_directory(unreadable)) {
      if (hidden || LeadsBack(it->path()) || it.depth() >= kMaxSideFileDepth) it.disable_recursion_pending();
      continue;
    }
    if (hidden || !it->is_regular_file(unreadable) || IsWeightOrIndex(it->path())) continue;
    files.push_back(fs::path(it->path()).lexically_relative(folder_).string());
    if (!IsUtf8(files.back())) return NameIsNoText(name_ + "/" + files.back());
  }
  if (error) return Fail(Code::kIo, Format("{}: listing the folder failed: {}", name_, error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

std::string Checkpoint::HeaderDigest() const {
  std::string all;
  for (const Shard& shard : shards_)
    all += shard.header.digest;
  return Hex(DigestOf(std::as_bytes(std::span(all))));
}

}  // namespace mergepipe
