#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "mergepipe/mergepipe.h"
#include "methods/method.h"
#include "recipe/gathered_rows.h"
#include "recipe/recipe.h"
#include "tokenizer/tokenizer_files.h"

namespace mergepipe {

/// A model of the merge: what the recipe calls it, and its opened checkpoint.
struct ResolvedModel {
  std::string name;  ///< as the recipe writes it
  std::string path;  ///< absolute
  std::shared_ptr<const Checkpoint> checkpoint;
  std::string architecture;  ///< that the recipe puts in place of the config's; "": none
};

/// One stored tensor that an output tensor reads.
struct TensorSource {
  size_t model = 0;  ///< position in ResolvedMerge::models
  TensorPlace place;
  /// Where its rows come from, when they are laid out anew for the output's tokens; null: it is read as it is
  /// stored.
  std::shared_ptr<const GatheredRows> rows;
};

/// One output tensor: no globals, no defaults left.
struct ResolvedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t elements = 0;
  bool merged = true;                 ///< false: bytes of sources[0] are copied
  std::string rule;                   ///< why it is copied; empty where merged
  std::vector<TensorSource> sources;  ///< distinct; the reference first
  std::vector<size_t> inputs;         ///< of the method, in the recipe's order: positions in `sources`
  size_t params = 0;                  ///< position in ResolvedMerge::params; most tensors share theirs
  TensorFacts facts;
  StatisticsRequest request;
  uint64_t bytes() const { return elements * DTypeBits(dtype) / 8; }
};

/// An input tensor that reaches no output, and the rule that says so.
struct DroppedTensor {
  size_t model = 0;
  std::string tensor, rule;
};

/// Two stored tensors of one model that must be equal.
struct EqualPair {
  TensorSource first, second;
};

/// The tokenizer of an output whose vocabulary the recipe sets.
struct OutputTokenizer {
  size_t model = 0;    ///< whose files are taken
  TokenizerEdit edit;  ///< what changes in them
  uint64_t rows = 0;   ///< the output's vocab_size
};

/// A stack of layers that was put together by slices.
struct SlicedStack {
  std::string prefix;
  int64_t donor_layers = 0;
  std::vector<int64_t> sources;  ///< by output layer: the number of the layer that its first source is
};

/// A merge with everything decided but the access mask.
struct ResolvedMerge {
  const Method* method = nullptr;
  std::vector<ResolvedModel> models;
  size_t donor = 0;                     ///< the model whose layout, config and side files the output takes
  std::vector<ResolvedTensor> tensors;  ///< sorted by name
  std::vector<TensorParams> params;     ///< each distinct set once, in order of first use
  std::vector<DroppedTensor> dropped;
  std::vector<std::string> warnings;
  std::optional<DType> out_dtype;
  bool keeps_layout = true;                ///< output tensors are the donor's, so its shards can be kept
  std::vector<SlicedStack> sliced;         ///< stacks of layers that slices cut
  std::vector<EqualPair> redundant_heads;  ///< left out as tied; whether they are is known once they are read
  bool unties_head = false;                ///< the output stores a head that the donor ties to its embedding
  std::optional<OutputTokenizer> tokenizer;  ///< none: the donor's, as it is
  std::optional<std::string> chat_template;  ///< Jinja; the output's tokenizer gets it instead of its own
  std::map<std::string, std::string> paths;  ///< absolute, by every spelling that the recipe uses
  uint64_t seed = 0;
  OutputForm form;
};

/// What a method sees of a source: its name in that model, type, shape. Where its rows are gathered, as they
/// are then; else what the headers say.
inline const TensorEntry& EntryOf(const ResolvedMerge& merge, const TensorSource& source) {
  if (source.rows != nullptr) return source.rows->entry;
  return merge.models[source.model].checkpoint->entry(source.place);
}

/// The result of an earlier recipe of the same file, which later ones name.
struct StageModel {
  std::string path;                                  ///< absolute
  std::shared_ptr<const PlannedCheckpoint> planned;  ///< where it is not made yet; else null
  bool has_fault = false;                            ///< nobody knows what it would be
};

struct ResolveOptions {
  MissingTensors missing = MissingTensors::kError;
  /// Layers that another model passes on get the base's (else the first model's) as their reference, so that
  /// a budget can leave out blocks of them.
  bool stand_ins = false;
  uint64_t seed = 0;
  std::map<std::string, std::string>
      paths;  ///< where models lie, by name in the recipe; others are looked up
  std::map<std::string, StageModel> stages;  ///< by name; they come before all paths
  std::vector<std::string> hub_caches;       ///< looked in before the usual ones
  OutputForm form;
};

/// Opens the models that a recipe names (headers only) and decides every output tensor. All faults at once:
/// kUsage for the recipe, kInvalidInput for checkpoints.
Result<ResolvedMerge> ResolveRecipe(const Recipe& recipe, const ResolveOptions& options, Ledger& ledger);

}  // namespace mergepipe
