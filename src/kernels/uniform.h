#pragma once

#include <stdint.h>

namespace mergepipe::kernels {

// Internal linkage: the loops are compiled with instruction sets that must not leak into other files.

/// The finaliser of SplitMix64.
static inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The uniform number in [0, 1) of element `index` in a stream: counter-based, one multiply chain per
/// element.
static inline float UniformAt(uint64_t stream, uint64_t index) {
  const uint64_t z = Mix(stream + (index + 1) * 0x9e3779b97f4a7c15u);
  return static_cast<float>(static_cast<uint32_t>(z >> 40)) * 0x1p-24f;
}

}  // namespace mergepipe::kernels
