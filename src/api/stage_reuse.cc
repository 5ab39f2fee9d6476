#include "api/stage_reuse.h"

#include <sys/stat.h>

#include "base/digest.h"
#include "base/text.h"
#include "catalog/identity.h"
#include "storage/source.h"
#include "tokenizer/tokenizer_files.h"
#include "txn/manifest.h"

namespace mergepipe {
namespace {

constexpr uint64_t kMaxSideFileBytes = 4ull << 30;

// Size and times of a file; the device and the inode too, so that another file that was moved there is
// another one.
std::string StampText(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "missing";
  return Format("{} {} {} {}.{:09} {}.{:09}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
}

// The donor's files beside the weights are copied; of the other models the config and the tokenizer have a
// say.
void AddSideFiles(const Checkpoint& model, bool is_donor, Sha256& sha) {
  const auto names = model.SideFiles();
  if (!names || model.is_planned()) return;  // a stage is known by its key
  for (const std::string& name : *names) {
    const auto origin = model.OriginOf(name);
    const bool counts = is_donor || name == kConfigName || FollowsTokenizer(name);
    if (origin && counts) sha.Update(Format("{} {}\n", name, StampText(origin->path)));
  }
}

bool HasDigest(const std::string& path, const std::string& digest) {
  const auto text = ReadSmallFile(path, kMaxSideFileBytes);
  return text && Hex(DigestOf(std::as_bytes(std::span(*text)))) == digest;
}

}  // namespace

std::string StageKey(const Plan& draft, const std::string& choices,
                     const std::vector<std::string>& input_keys) {
  const ResolvedMerge& merge = *draft.merge;
  Sha256 sha;
  sha.Update(Format("{}\n{}\n", draft.digest, choices));
  for (size_t m = 0; m < merge.models.size(); ++m) {
    const Checkpoint& checkpoint = *merge.models[m].checkpoint;
    sha.Update((input_keys[m].empty() ? StampKey(checkpoint) : input_keys[m]) + "\n");
    AddSideFiles(checkpoint, m == merge.donor, sha);
  }
  return sha.FinishHex();
}

Json StageRecordJson(const std::string& key, const Plan& plan, const std::string& folder) {
  Json weights = Json::object();
  for (const Unit& unit : plan.units)
    weights[unit.file_name] = StampText(folder + "/" + unit.file_name);
  return {{"key", key}, {"weights", weights}};
}

Json ManifestOfStage(const std::string& folder) {
  auto manifest = ReadManifest(folder);
  if (!manifest) return {};
  const Json& envelope = manifest->at("envelope");
  const bool is_stage = envelope.contains("stage") && envelope["stage"].is_object() &&
                        envelope["stage"].value("key", Json()).is_string() &&
                        envelope["stage"].value("weights", Json()).is_object();
  return is_stage ? std::move(*manifest) : Json();
}

bool IsUnchangedStage(const std::string& folder, const Json& manifest, const std::string& key) {
  if (manifest.is_null()) return false;
  const Json& stage = manifest.at("envelope").at("stage");
  if (stage.at("key") != key) return false;
  for (const auto& [file, stamp] : stage.at("weights").items()) {
    if (stamp != StampText(folder + "/" + file)) return false;
  }
  for (const auto& [file, record] : manifest.at("core").at("files").items()) {
    if (!HasDigest(folder + "/" + file, record.at("digest"))) return false;
  }
  return true;
}

}  // namespace mergepipe
