#pragma once

#include <map>
#include <string>
#include <vector>

#include "format/json.h"
#include "planner/plan.h"
#include "storage/output_file.h"
#include "txn/record.h"

namespace mergepipe {

inline constexpr const char* kManifestName = "mergepipe_manifest.json";
inline constexpr const char* kManifestSchema = "mergepipe.manifest/1";

/// A file beside the weights, as written.
struct FileRecord {
  std::string digest;
  uint64_t bytes = 0;
};

/// What a merge knows once everything is written: the manifest is made of it. docs/manifest.md lists every
/// field.
struct ManifestContents {
  const Plan* plan = nullptr;
  const std::vector<TensorRecord>* tensors = nullptr;  ///< by position in ResolvedMerge::tensors
  std::map<std::string, FileRecord>
      files;  ///< that a loader reads (config, index, tokenizer, …): a change is a difference
  std::map<std::string, FileRecord> notes;  ///< that people may edit (model card, recipe)
  Json envelope;                            ///< ledger, paths, time, host: no part of the root digest
};

/// Writes the manifest {core, envelope, envelope_digest, root_digest, schema} and returns the root digest.
/// Memory does not grow with the number of tensors.
Result<std::string> WriteManifest(const ManifestContents& contents, TextSink& sink);

/// Reads and checks the manifest of an output folder: schema, root digest and envelope digest. Fails with
/// kInvalidInput where there is none, with kDifference where it does not match its own digests.
Result<Json> ReadManifest(const std::string& folder);

/// The records of its tensors, by name.
std::map<std::string, TensorRecord> TensorRecords(const Json& manifest);

/// One tensor's record as JSON, and back; also the lines of the journal.
Json RecordToJson(const TensorRecord& record);
TensorRecord RecordFromJson(const Json& json);

}  // namespace mergepipe
