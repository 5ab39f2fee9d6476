#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "mergepipe/result.h"

namespace mergepipe::kernels {

/// Element-wise loops over spans of the work type T: float, or double where a tensor is stored in F64. Each
/// is plain IEEE arithmetic in the written order, without contraction, so every target gives the same bits.
/// `n` counts elements; spans of one call do not overlap unless a parameter is both read and written.
template <typename T>
struct Loops {
  /// out[i] = the stored value; exact. `dtype` is F16, BF16, F32 or F64 (F64 only where T is double).
  void (*widen)(DType dtype, const void* stored, T* out, size_t n);
  /// stored[i] = values[i] rounded to nearest even, once; NaN payloads that came from `widen` survive.
  void (*narrow)(DType dtype, const T* values, void* stored, size_t n);

  /// delta[i] = x[i] - base[i] of stored values, and exactly 0 where both widen to the same bits (infinities
  /// and NaN too).
  void (*delta)(DType x_dtype, const void* x, DType base_dtype, const void* base, T* delta, size_t n);
  /// delta[i] = x[i] - base[i], and exactly 0 where both have the same bits (infinities and NaN too).
  void (*subtract)(const T* x, const T* base, T* delta, size_t n);
  /// out[i] = mix[i] == 0 ? base[i] : base[i] + mix[i]: no update keeps the base's bits, -0.0 too.
  void (*add_to_base)(const T* base, const T* mix, T* out, size_t n);
  /// sum[i] += c * x[i], product and sum rounded apart.
  void (*add_scaled)(T* sum, const T* x, T c, size_t n);
  /// sum[i] = fma(c, x[i], sum[i]): one rounding, on every target.
  void (*add_fused)(T* sum, const T* x, T c, size_t n);
  /// x[i] *= c.
  void (*scale)(T* x, T c, size_t n);
  /// x[i] /= c.
  void (*divide)(T* x, T c, size_t n);
  /// x[i] /= d[i] where d[i] != 0.
  void (*divide_by)(T* x, const T* d, size_t n);
  /// One expert's part in the sign election (Yadav et al. 2023, section 3): with v = w * delta[i], where v is
  /// not 0 and has the sign of vote[i] (0 counts as +): mix[i] += v, weight[i] += w.
  void (*add_agreeing)(const T* vote, const T* delta, T w, T* mix, T* weight, size_t n);

  /// delta[i] = 0 unless its magnitude's key (bits of the float32 |delta|) is at least min_key.
  void (*keep_at_least)(T* delta, uint32_t min_key, size_t n);
  /// delta[i] = 0 unless its magnitude's key is below end_key.
  void (*keep_below)(T* delta, uint32_t end_key, size_t n);
  /// delta[i] = 0 unless the uniform number of (stream, first_index + i) in [0, 1) is below p.
  void (*keep_random)(T* delta, uint64_t stream, uint64_t first_index, float p, size_t n);

  /// True when no element is NaN or infinite.
  bool (*all_finite)(const T* x, size_t n);
  /// The same for stored values.
  bool (*all_stored_finite)(DType dtype, const void* stored, size_t n);
  /// The largest magnitude key; that of a NaN is above that of infinity.
  uint32_t (*max_key)(const T* x, size_t n);
  /// Number of elements other than 0.
  size_t (*count_nonzero)(const T* x, size_t n);
  /// Adds a run that begins with row `first_row` of its tensor to a random projection on kSketchBuckets
  /// buckets. A row is kSketchBuckets elements, counted from the tensor's first; with h = splitmix64(row) its
  /// element j goes with sign kSketchSigns[(h & 4095) + j] to the bucket (j + 16 * ((h >> 12) & 7)) mod 128.
  void (*add_sketch)(const T* x, size_t n, uint64_t first_row, T* sums);
  /// Sum of |x[i]| in float64 over 16 fixed lanes.
  double (*sum_abs)(const T* x, size_t n);
  /// Sum of x[i] * y[i] in float64 over 16 fixed lanes.
  double (*dot)(const T* x, const T* y, size_t n);

  /// counts[key >> 15] += 1 for each element's magnitude key; 65,536 counters.
  void (*count_high)(const T* delta, size_t n, uint32_t* counts);
  /// sums[key >> 15] += key & 0x7fff for each element: with the counts, the exact sum of magnitudes.
  void (*add_low)(const T* delta, size_t n, uint64_t* sums);
  /// counts[key & 0x7fff] += 1 for elements with key >> 15 == high; 32,768 counters.
  void (*count_low)(const T* delta, size_t n, uint32_t high, uint32_t* counts);
  /// Number of elements with this key.
  size_t (*count_equal)(const T* delta, size_t n, uint32_t key);
};

/// The loops of one instruction set.
struct Kernels {
  const char* target;  ///< "scalar", "sse4", "avx2", "avx512"
  Loops<float> f32;
  Loops<double> f64;
  /// products[i * count + j] = the inner product of quantised sketches i and j, each kSketchBuckets long.
  void (*multiply_sketches)(const int8_t* const* sketches, size_t count, int32_t* products);

  template <typename T>
  const Loops<T>& Of() const;
};
template <>
inline const Loops<float>& Kernels::Of<float>() const {
  return f32;
}
template <>
inline const Loops<double>& Kernels::Of<double>() const {
  return f64;
}

inline constexpr size_t kHighBuckets = 65536;
inline constexpr size_t kLowBuckets = 32768;
inline constexpr unsigned kLowBits = 15;
/// Buckets of the random projection.
inline constexpr size_t kSketchBuckets = 128;

/// Names of the targets that run on this processor, slowest first.
std::vector<std::string> RunnableTargets();

/// The fastest runnable target, or the one named by `forced` (MERGEPIPE_TARGET) when that is not empty. Fails
/// with kUsage when that one is unknown or does not run here.
Result<const Kernels*> ChooseKernels(const std::string& forced);

}  // namespace mergepipe::kernels
