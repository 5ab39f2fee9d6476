#pragma once

#include <string>
#include <vector>

#include "format/json.h"
#include "planner/plan.h"

namespace mergepipe {

/// What decides the bytes of a stage and is known before any data is read: the digest of its drafted plan
/// (which knows its inputs by their headers), the choices that the draft has not made yet, and the state of
/// every input. An input that is a stage itself is known by its own key, another one by the stamps of its
/// files; so are the donor's files beside the weights, and the configs and tokenizers of the others.
/// `input_keys` are those of stages, by model; empty for other models.
std::string StageKey(const Plan& draft, const std::string& choices,
                     const std::vector<std::string>& input_keys);

/// The part of a manifest that lets a later run use the output again: the key, and the stamps of the weight
/// files in `folder`. Moving a folder does not change them.
Json StageRecordJson(const std::string& key, const Plan& plan, const std::string& folder);

/// The manifest of a folder that holds the finished output of a stage; null where it holds none.
Json ManifestOfStage(const std::string& folder);

/// True where that output was made under the same key and nothing in it was touched since: the stamps of its
/// weights and the digests of its other files are those in the manifest.
bool IsUnchangedStage(const std::string& folder, const Json& manifest, const std::string& key);

}  // namespace mergepipe
