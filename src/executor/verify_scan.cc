#include "executor/verify_scan.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "executor/buffers.h"
#include "executor/scan.h"
#include "format/safetensors.h"
#include "txn/digest_tree.h"
#include "txn/manifest.h"
#include "txn/side_files.h"

namespace mergepipe {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kChunksPerItem = 4;

// One stored tensor as the manifest knows it.
struct StoredTensor {
  std::string name;
  size_t file = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint64_t leaf_bytes = 0;
  uint64_t element_bits = 8;
  std::vector<std::string> chunks;
};

struct ScanItem {
  size_t tensor = 0;
  uint64_t first_chunk = 0;
  uint64_t chunks = 0;
};

class OutputScan {
 public:
  OutputScan(const std::string& folder, const Json& manifest)
      : folder_(folder), core_(manifest.at("core")), envelope_(manifest.at("envelope")) {}

  Result<VerifyFindings> Run(const ScanLimits& limits, ProgressCounters& progress) {
    for (const Json& unit : core_.at("units"))
      OpenUnit(unit);
    for (const Json& tensor : core_.at("tensors"))
      AddTensor(tensor);
    MP_TRY(ScanTensors(limits, progress));
    CheckSmallFiles(core_.at("files"), true);
    CheckSmallFiles(envelope_.at("notes"), false);
    NoteOtherFiles();
    std::sort(found_.differences.begin(), found_.differences.end(),
              [](const Difference& a, const Difference& b) {
                return std::tie(a.file, a.tensor, a.element) < std::tie(b.file, b.tensor, b.element);
              });
    return std::move(found_);
  }

 private:
  void OpenUnit(const Json& unit) {
    const std::string name = unit.at("file");
    known_.insert(name);
    names_.push_back(name);
    auto source = OpenLocalSource(folder_ + "/" + name, name);
    headers_.emplace_back();
    if (!source) {
      sources_.push_back(nullptr);
      return Differ(name, source.error().message);
    }
    sources_.push_back(std::move(*source));
    const Source& file = *sources_.back();
    const uint64_t expected = unit.at("bytes");
    if (file.Size() != expected) Differ(name, Format("has {} bytes instead of {}", file.Size(), expected));
    CheckHeader(file, unit.at("header_digest"));
  }

  void CheckHeader(const Source& file, const std::string& expected_digest) {
    Ledger ledger;
    const size_t account = ledger.AddAccount(file.Describe());
    auto header = ReadSafetensorsHeader(file, ledger, account);
    if (!header) return Differ(file.Describe(), header.error().message);
    std::string prefix(Source::BufferBytes(header->data_start), '\0');
    const auto range = file.Read(0, header->data_start, std::as_writable_bytes(std::span(prefix)));
    if (!range || Hex(DigestOf(std::span(range->data, header->data_start))) != expected_digest)
      Differ(file.Describe(), "its header differs");
    for (const TensorEntry& entry : header->tensors)
      headers_.back()[entry.name] = {entry, header->data_start};
  }

  void AddTensor(const Json& json) {
    const std::string file = json.at("file");
    const auto at = std::find(names_.begin(), names_.end(), file);
    const auto number = static_cast<size_t>(at - names_.begin());
    const std::string name = json.at("name");
    ++found_.tensors;
    if (number == names_.size() || sources_[number] == nullptr) return;
    const auto entry = headers_[number].find(name);
    if (entry == headers_[number].end()) {
      if (!headers_[number].empty()) Differ(file, Format("lacks the tensor '{}'", name), name);
      return;
    }
    const auto& [stored, data_start] = entry->second;
    if (DTypeName(stored.dtype) != json.at("dtype").get<std::string>() ||
        stored.shape != json.at("shape").get<std::vector<uint64_t>>()) {
      return Differ(
          file,
          Format("tensor '{}' is {} {} instead of {} {}", name, DTypeName(stored.dtype),
                 ShapeText(stored.shape), json.at("dtype").get<std::string>(), json.at("shape").dump()),
          name);
    }
    StoredTensor tensor{.name = name,
                        .file = number,
                        .offset = data_start + stored.begin,
                        .bytes = stored.bytes(),
                        .leaf_bytes = json.at("leaf_bytes"),
                        .element_bits = DTypeBits(stored.dtype),
                        .chunks = json.at("chunks")};
    for (uint64_t c = 0; c < tensor.chunks.size(); c += kChunksPerItem)
      items_.push_back({tensors_.size(), c, std::min<uint64_t>(kChunksPerItem, tensor.chunks.size() - c)});
    tensors_.push_back(std::move(tensor));
  }

  Result<void> ScanTensors(const ScanLimits& limits, ProgressCounters& progress) {
    uint64_t item_bytes = kLeafBytes;
    for (const StoredTensor& tensor : tensors_) {
      item_bytes = std::max(item_bytes, tensor.leaf_bytes * kLeavesPerChunk * kChunksPerItem);
      progress.total_bytes += tensor.bytes;
    }
    const size_t workers = MP_TRY(ScanWorkers(limits, Source::BufferBytes(item_bytes)));
    auto pool = MP_TRY(BufferPool::Map(workers * Source::BufferBytes(item_bytes)));
    std::vector<std::span<std::byte>> buffers;
    for (size_t w = 0; w < workers; ++w)
      buffers.push_back(pool.Take(Source::BufferBytes(item_bytes)));
    return ParallelScan(items_.size(), workers, limits.stop_signal, [&](size_t worker, uint64_t item) {
      return ScanOne(items_[item], buffers[worker], progress);
    });
  }

  Result<void> ScanOne(const ScanItem& item, std::span<std::byte> buffer, ProgressCounters& progress) {
    const StoredTensor& tensor = tensors_[item.tensor];
    const uint64_t chunk_bytes = tensor.leaf_bytes * kLeavesPerChunk;
    const uint64_t begin = item.first_chunk * chunk_bytes;
    const uint64_t size = std::min(item.chunks * chunk_bytes, tensor.bytes - begin);
    const auto range = MP_TRY(sources_[tensor.file]->Read(tensor.offset + begin, size, buffer));
    for (uint64_t c = 0; c < item.chunks; ++c) {
      const uint64_t at = c * chunk_bytes;
      const uint64_t bytes = std::min(chunk_bytes, size - at);
      DigestTree tree((bytes + tensor.leaf_bytes - 1) / tensor.leaf_bytes);
      tree.Set(0, {range.data + at, bytes}, tensor.leaf_bytes);
      if (Hex(tree.Chunks()[0]) == tensor.chunks[item.first_chunk + c]) continue;
      const std::lock_guard lock(mutex_);
      const uint64_t first = (begin + at) * 8 / tensor.element_bits;
      const uint64_t count = bytes * 8 / tensor.element_bits;
      found_.differences.push_back(
          {names_[tensor.file],
           Format("tensor '{}' differs within elements [{}, {})", tensor.name, first, first + count),
           tensor.name, first, count});
    }
    progress.done_bytes += size;
    const std::lock_guard lock(mutex_);
    found_.checked_bytes += size;
    return {};
  }

  void CheckSmallFiles(const Json& files, bool binding) {
    constexpr uint64_t kLimit = 4ull << 30;
    for (const auto& [name, record] : files.items()) {
      known_.insert(name);
      const auto text = ReadSmallFile(folder_ + "/" + name, kLimit);
      const std::string what =
          !text ? text.error().message
          : Hex(DigestOf(std::as_bytes(std::span(*text)))) == record.at("digest").get<std::string>()
              ? ""
              : "differs";
      if (what.empty()) continue;
      if (binding) {
        Differ(name, what);
      } else {
        found_.notes.push_back(text ? Format("{}: was edited", name) : Format("{}: was removed", name));
      }
    }
  }

  void NoteOtherFiles() {
    known_.insert(kManifestName);
    std::error_code error;
    for (fs::recursive_directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().lexically_relative(folder_).string();
      if (it->is_directory() || known_.count(name) > 0) continue;
      if (EndsWith(name, ".safetensors") && name.find('/') == std::string::npos) {
        Differ(name, "is not part of the output, and loaders would read it");
      } else {
        found_.notes.push_back(Format("{}: was added", name));
      }
    }
  }

  void Differ(const std::string& file, std::string what, std::string tensor = "") {
    found_.differences.push_back({file, std::move(what), std::move(tensor), 0, 0});
  }

  struct Stored {
    TensorEntry entry;
    uint64_t data_start = 0;
  };

  const std::string& folder_;
  const Json& core_;
  const Json& envelope_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::map<std::string, Stored>> headers_;
  std::vector<StoredTensor> tensors_;
  std::vector<ScanItem> items_;
  std::set<std::string> known_;
  std::mutex mutex_;
  VerifyFindings found_;
};

}  // namespace

Result<VerifyFindings> ScanAgainstManifest(const std::string& folder, const Json& manifest,
                                           const ScanLimits& limits, ProgressCounters& progress) {
  return OutputScan(folder, manifest).Run(limits, progress);
}

}  // namespace mergepipe
