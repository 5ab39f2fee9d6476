#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/kernels.h"
#include "mergepipe/result.h"

namespace mergepipe {

/// What a method computes with: the inputs' values, or their deltas to the base (Δ_i = θ_i − θ_0, the base
/// itself not among them).
enum class Domain { kValues, kDeltas };

enum class ParamType { kNumber, kInteger, kBool };

/// One parameter of a method; recipes, help and documentation are checked against and made from this record.
struct ParamSpec {
  std::string name;
  ParamType type = ParamType::kNumber;
  bool per_model = false;               ///< looked up for each input, else once for the tensor
  std::optional<double> default_value;  ///< none: see `required`
  bool required = false;                ///< none and not required: the parameter may be absent
  std::optional<double> minimum;        ///< inclusive
  std::string doc;
};

/// Effective parameter values of one tensor. Booleans are 0 and 1. An absent optional parameter has no entry.
struct TensorParams {
  std::map<std::string, double> global;
  std::vector<std::map<std::string, double>> inputs;  ///< by input

  double Get(const std::string& name) const { return global.at(name); }
  double Get(size_t input, const std::string& name) const { return inputs[input].at(name); }
  bool operator<(const TensorParams& other) const {
    return std::tie(global, inputs) < std::tie(other.global, other.inputs);
  }
};

/// Which elements of a delta survive sparsification.
struct KeepRule {
  enum class Kind { kAll, kNone, kLargest, kRandom, kRanked };
  Kind kind = Kind::kAll;
  uint64_t count = 0;     ///< kLargest: how many, over the whole tensor, ties broken by lowest index
  uint64_t outliers = 0;  ///< kLargest: how many larger ones are left out before those are counted
  float probability = 1;  ///< kRandom: chance of each element to stay; kRanked: that of a row's smallest
  float span =
      0;  ///< kRanked: half of what the chance grows by from a row's smallest magnitude to its largest
  uint64_t stream = 0;  ///< kRandom, kRanked: names the random numbers of this (seed, expert, tensor)
  /// kLargest: elements from the largest down to the lower cut; all of them: there is none.
  uint64_t from_top() const { return count + outliers; }
};

/// Facts about one tensor that `request` may use: nothing that needs its data.
struct TensorFacts {
  uint64_t elements = 0;
  std::vector<uint64_t> shape;
  Domain domain = Domain::kDeltas;       ///< what the inputs are
  std::optional<size_t> base_input;      ///< position of the base among the inputs (kValues only)
  std::vector<uint64_t> random_streams;  ///< by input: hash of (seed, position of the expert, output tensor)
};

class JointStatisticsSpec;

/// Statistics of a whole tensor that must be known before the first element can be computed.
struct StatisticsRequest {
  std::vector<KeepRule> keep;                        ///< by input; empty where nothing is left out
  bool l1 = false;                                   ///< sums of |Δ| before and after `keep`
  bool gram = false;                                 ///< all inner products of the inputs
  std::shared_ptr<const JointStatisticsSpec> joint;  ///< what only this method needs; null: nothing
};

/// The k-th largest magnitude, exactly.
struct Threshold {
  uint32_t key = 0;          ///< bits of the float32 magnitude; elements above it stay
  uint64_t equal_total = 0;  ///< elements with just this magnitude
  uint64_t equal_kept = 0;   ///< the first so many of them stay
  /// Where known: those of them stay whose index in the tensor is below this. Else they are counted.
  std::optional<uint64_t> cut_index;

  /// True where some of the equal elements stay and some go, and which is not known but by counting.
  bool CutsAmongEquals() const { return equal_kept < equal_total && !cut_index; }
};

/// What a method's own statistics give: their meaning is the method's.
struct JointResult {
  std::vector<double> values;
  std::optional<Threshold> threshold;  ///< of a selection that all inputs share, by a score of their elements
};

/// What was asked for, by input.
struct TensorStatistics {
  std::vector<Threshold> thresholds;  ///< for the inputs whose rule is kLargest
  std::vector<Threshold> outliers;    ///< the same of their `outliers`; empty where none of them has any
  std::vector<double> l1_whole, l1_kept;
  std::vector<double> gram;  ///< [inputs, inputs], row-major, float64
  JointResult joint;

  /// Every cut that may lie among equal elements: the thresholds, the outliers, the joint one.
  std::vector<Threshold> Cuts() const {
    std::vector<Threshold> cuts = thresholds;
    cuts.insert(cuts.end(), outliers.begin(), outliers.end());
    if (joint.threshold) cuts.push_back(*joint.threshold);
    return cuts;
  }
};

/// Constants of one tensor: what `prepare` makes of statistics and parameters. A method uses what it needs.
struct Constants {
  std::vector<double> weights;  ///< by input
  std::vector<double> rescale;  ///< by input: factor on what `keep` left; empty: none
  double divisor = 1;
  double factor = 1;  ///< on the mixture ("lambda")
  bool normalize = false;
  Domain domain = Domain::kDeltas;  ///< of the inputs, for methods that take both
  uint64_t vector_length = 0;       ///< of the vectors that joint.values are about; 0: they are about none
  bool columns = false;             ///< those vectors lie along the first axis, else along the last
  JointResult joint;
};

/// A run of elements in work type T, small enough for the cache. `inputs` are deltas after sparsification and
/// rescaling, or values, as the method's domain says; they may be overwritten.
template <typename T>
struct Tile {
  size_t n = 0;
  uint64_t first = 0;  ///< index of its first element in the tensor
  const T* base = nullptr;
  std::span<T* const> inputs;
  T* out = nullptr;
  T* scratch[2] = {nullptr, nullptr};
  const kernels::Loops<T>* loops = nullptr;
};

/// A merge method: a record and two pure functions (and what statistics they need). No I/O, no state.
struct Method {
  std::string name;
  std::string summary;
  std::string paper;
  std::string formula;
  Domain domain =
      Domain::kDeltas;  ///< without `needs_base`: kDeltas where the recipe names a base, else kValues
  bool needs_base = true;
  bool base_is_special = true;  ///< false: a base that the recipe names takes part like any other model
  bool additive =
      false;  ///< result = base + Σ fixed coefficient · Δ: the certificate of omitted blocks holds
  size_t min_inputs = 0;  ///< the base included where needs_base, not counted where it is optional
  size_t max_inputs = SIZE_MAX;
  std::vector<ParamSpec> params;
  std::vector<std::string>
      unused_params;  ///< accepted because sister methods use them; a recipe that sets one is warned

  /// Statistics needed with these parameters. Fails with kUsage when a parameter is out of range.
  Result<StatisticsRequest> (*request)(const TensorFacts&, const TensorParams&) = nullptr;
  Constants (*prepare)(const TensorFacts&, const TensorParams&, const TensorStatistics&) = nullptr;
  void (*apply32)(const Constants&, Tile<float>&) = nullptr;
  void (*apply64)(const Constants&, Tile<double>&) = nullptr;
  /// The score of each element over all inputs, >= 0, into `out`; where statistics hold a joint threshold,
  /// elements whose score lies under it are 0 in every input. May be null.
  void (*score32)(std::span<float* const> inputs, float* out, size_t n) = nullptr;
  void (*score64)(std::span<double* const> inputs, double* out, size_t n) = nullptr;
  /// λ_i of each input in θ = θ_0 + Σ λ_i Δ_i: exact for additive methods, else what comes nearest. They rank
  /// blocks and predict errors; they decide no value.
  std::vector<double> (*coefficients)(const TensorFacts&, const TensorParams&) = nullptr;
  /// Inputs that disagree in sign do not cancel but give way, so that their errors do not add.
  bool elects_signs = false;
  /// True when the output is the one input's stored value, so that bytes can be copied. May be null.
  bool (*is_copy)(const TensorParams&) = nullptr;

  bool base_is_optional() const { return base_is_special && !needs_base; }
  /// What its inputs are in a merge with or without a base.
  Domain DomainWith(bool base) const { return base_is_optional() && !base ? Domain::kValues : domain; }
};

/// All methods, sorted by name: one for each file in methods/merge.
const std::vector<const Method*>& AllMethods();
const Method* FindMethod(const std::string& name);

}  // namespace mergepipe
