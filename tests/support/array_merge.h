#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "methods/method.h"

namespace mergepipe::tests {

/// One tensor to merge, in memory. For methods that work on values, `inputs` are all models and the base is
/// one of them; for those that work on deltas the base stands apart.
struct ArrayMerge {
  const Method* method = nullptr;
  TensorParams params;
  std::vector<float> base;
  std::vector<std::vector<float>> inputs;
  uint64_t seed = 0;
  std::vector<uint64_t> shape;  ///< of the tensor; empty: one axis
  bool names_base = true;       ///< whether the recipe names a base, for methods where it may or may not

  Domain domain() const { return method->DomainWith(names_base); }
};

/// How the work is cut up; none of it may show in the result.
struct Cuts {
  size_t items = 1;          ///< runs of statistics tiles that are gathered apart, last one first
  size_t apply_tile = 4096;  ///< elements computed at once
};

/// The merged tensor, made in the steps of the executor: gather statistics, prepare, keep, apply.
std::vector<float> MergeArrays(const ArrayMerge& merge, const kernels::Kernels& kernels,
                               const Cuts& cuts = {});

/// Merges with the fastest kernels.
std::vector<float> MergeArrays(const ArrayMerge& merge);

/// What the method asks to know of the tensor. Throws when it refuses the parameters.
StatisticsRequest RequestOf(const ArrayMerge& merge);

/// A merge with every parameter of the method set: its default, else a value that is in order for it.
ArrayMerge WithDefaults(const std::string& method, std::vector<float> base,
                        std::vector<std::vector<float>> inputs);

/// Sets a parameter wherever the method has it.
void Set(ArrayMerge& merge, const std::string& name, double value);

/// Normally distributed numbers.
std::vector<float> RandomFloats(size_t count, uint32_t seed, double scale = 1);

/// The array plus normally distributed deltas.
std::vector<float> Moved(std::vector<float> from, uint32_t seed, double scale);

}  // namespace mergepipe::tests
