// The body of every target: included once per instruction set by target_*.cc, compiled with that set's flags,
// and vectorised by the compiler. Everything has internal linkage and nothing from the standard library with
// code of its own is included, so that no instruction of a wider set can leak into other files.
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/uniform.h"

namespace mergepipe::kernels {
namespace {

inline uint32_t Bits(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
inline uint64_t Bits(double x) {
  return __builtin_bit_cast(uint64_t, x);
}
inline float FloatOf(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// --- stored types
// -------------------------------------------------------------------------------------------

inline float FromBf16(uint16_t stored) {
  return FloatOf(static_cast<uint32_t>(stored) << 16);
}

inline uint16_t ToBf16(float x) {
  const uint32_t bits = Bits(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A NaN keeps its upper bits; one whose payload lies in the lower half only is made quiet instead of an
  // infinity.
  const uint32_t upper = bits >> 16;
  const uint32_t nan = (upper & 0x7fu) != 0 ? upper : upper | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

inline float FromF16(uint16_t stored) {
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  const uint32_t sign = (static_cast<uint32_t>(stored) & 0x8000u) << 16;
  const uint32_t magnitude = (static_cast<uint32_t>(stored) & 0x7fffu) << 13;
  const uint32_t normal = magnitude + kRebias;
  const uint32_t special = magnitude + 2 * kRebias;  // infinity and NaN: exponent 31 becomes 255
  // Subnormal: 2^-14 * (1 + m) - 2^-14, exact in float32.
  const uint32_t subnormal = Bits(FloatOf(magnitude + (113u << 23)) - FloatOf(113u << 23));
  const uint32_t finite = magnitude < (1u << 23) ? subnormal : normal;
  return FloatOf(sign | (magnitude >= (31u << 23) ? special : finite));
}

inline uint16_t ToF16(float x) {
  const uint32_t bits = Bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
  // Below 2^-14 the addition of 0.5 rounds at the last bit of a subnormal.
  const uint32_t subnormal = Bits(FloatOf(magnitude) + 0.5f) - Bits(0.5f);
  const uint32_t payload = (magnitude >> 13) & 0x3ffu;
  const uint32_t nan = 0x7c00u | (payload != 0 ? payload : 0x200u);
  uint32_t out = magnitude < (113u << 23) ? subnormal : normal;
  out = magnitude >= 0x477ff000u ? 0x7c00u : out;  // 65520 and more round to infinity
  out = magnitude > 0x7f800000u ? nan : out;
  return static_cast<uint16_t>(sign | out);
}

// float64 to float32 rounded to odd: a second rounding to 16 bits then rounds as if it were the only one.
inline float ToOdd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back == x || x != x) return nearest;
  uint32_t bits = Bits(nearest);
  if (__builtin_fabs(back) > __builtin_fabs(x)) --bits;
  return FloatOf(bits | 1u);
}

template <typename T>
float Single(T x);
template <>
inline float Single(float x) {
  return x;
}
template <>
inline float Single(double x) {
  return ToOdd(x);
}

// The type of a stored value and how it widens: what the loops over stored values are templates of.
struct StoredBf16 {
  using Type = uint16_t;
  static float Wide(uint16_t v) { return FromBf16(v); }
};
struct StoredF16 {
  using Type = uint16_t;
  static float Wide(uint16_t v) { return FromF16(v); }
};
struct StoredF32 {
  using Type = float;
  static float Wide(float v) { return v; }
};
struct StoredF64 {
  using Type = double;
  static double Wide(double v) { return v; }
};

constexpr size_t DTypeBytesOf(DType dtype) {
  return dtype == DType::kF64 ? 8 : dtype == DType::kF32 ? 4 : 2;
}

template <typename T, typename Stored>
void WidenLoop(const void* stored, T* __restrict out, size_t n) {
  const auto* __restrict in = static_cast<const typename Stored::Type*>(stored);
  for (size_t i = 0; i < n; ++i) {
    typename Stored::Type value;
    __builtin_memcpy(&value, in + i, sizeof value);
    out[i] = static_cast<T>(Stored::Wide(value));
  }
}

template <typename T>
void Widen(DType dtype, const void* stored, T* out, size_t n) {
  if (dtype == DType::kBF16) return WidenLoop<T, StoredBf16>(stored, out, n);
  if (dtype == DType::kF16) return WidenLoop<T, StoredF16>(stored, out, n);
  if (dtype == DType::kF32) return WidenLoop<T, StoredF32>(stored, out, n);
  WidenLoop<T, StoredF64>(stored, out, n);
}

template <typename T, typename Stored, typename To>
inline void NarrowLoop(const T* __restrict values, void* stored, size_t n, To to) {
  auto* __restrict out = static_cast<Stored*>(stored);
  for (size_t i = 0; i < n; ++i) {
    const Stored value = to(values[i]);
    __builtin_memcpy(out + i, &value, sizeof value);
  }
}

template <typename T>
void Narrow(DType dtype, const T* values, void* stored, size_t n) {
  if (dtype == DType::kBF16)
    return NarrowLoop<T, uint16_t>(values, stored, n, [](T v) { return ToBf16(Single(v)); });
  if (dtype == DType::kF16)
    return NarrowLoop<T, uint16_t>(values, stored, n, [](T v) { return ToF16(Single(v)); });
  if (dtype == DType::kF32)
    return NarrowLoop<T, float>(values, stored, n, [](T v) { return static_cast<float>(v); });
  NarrowLoop<T, double>(values, stored, n, [](T v) { return static_cast<double>(v); });
}

// --- arithmetic
// ---------------------------------------------------------------------------------------------

template <typename T>
void Subtract(const T* __restrict x, const T* __restrict base, T* __restrict delta, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const T difference = x[i] - base[i];
    delta[i] = Bits(x[i]) == Bits(base[i]) ? T{0} : difference;
  }
}

template <typename T, typename Stored>
void DeltaLoop(const void* x, const void* base, T* __restrict delta, size_t n) {
  const auto* __restrict px = static_cast<const typename Stored::Type*>(x);
  const auto* __restrict pb = static_cast<const typename Stored::Type*>(base);
  for (size_t i = 0; i < n; ++i) {
    typename Stored::Type stored_x, stored_base;
    __builtin_memcpy(&stored_x, px + i, sizeof stored_x);
    __builtin_memcpy(&stored_base, pb + i, sizeof stored_base);
    const T wide_x = static_cast<T>(Stored::Wide(stored_x));
    const T wide_base = static_cast<T>(Stored::Wide(stored_base));
    const T difference = wide_x - wide_base;
    delta[i] = Bits(wide_x) == Bits(wide_base) ? T{0} : difference;
  }
}

template <typename T>
void MixedDelta(DType x_dtype, const void* x, DType base_dtype, const void* base, T* delta, size_t n) {
  constexpr size_t kChunk = 512;
  T wide_x[kChunk], wide_base[kChunk];
  for (size_t at = 0; at < n; at += kChunk) {
    const size_t count = n - at < kChunk ? n - at : kChunk;
    Widen(x_dtype, static_cast<const char*>(x) + at * DTypeBytesOf(x_dtype), wide_x, count);
    Widen(base_dtype, static_cast<const char*>(base) + at * DTypeBytesOf(base_dtype), wide_base, count);
    Subtract(wide_x, wide_base, delta + at, count);
  }
}

template <typename T>
void Delta(DType x_dtype, const void* x, DType base_dtype, const void* base, T* delta, size_t n) {
  if (x_dtype != base_dtype) return MixedDelta(x_dtype, x, base_dtype, base, delta, n);
  if (x_dtype == DType::kBF16) return DeltaLoop<T, StoredBf16>(x, base, delta, n);
  if (x_dtype == DType::kF16) return DeltaLoop<T, StoredF16>(x, base, delta, n);
  if (x_dtype == DType::kF32) return DeltaLoop<T, StoredF32>(x, base, delta, n);
  DeltaLoop<T, StoredF64>(x, base, delta, n);
}

template <typename T>
void AddToBase(const T* __restrict base, const T* __restrict mix, T* __restrict out, size_t n) {
  // Else clang adds (mix == 0 ? -0.0 : mix), and a signalling NaN of the base becomes a quiet one.
#ifdef __clang__
#pragma clang fp exceptions(maytrap)
#endif
  for (size_t i = 0; i < n; ++i) {
    const T sum = base[i] + mix[i];
    out[i] = mix[i] == T{0} ? base[i] : sum;
  }
}

template <typename T>
void AddScaled(T* __restrict sum, const T* __restrict x, T c, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const T product = c * x[i];
    sum[i] += product;
  }
}

inline float Fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline double Fused(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}

template <typename T>
void AddFused(T* __restrict sum, const T* __restrict x, T c, size_t n) {
  for (size_t i = 0; i < n; ++i)
    sum[i] = Fused(c, x[i], sum[i]);
}

template <typename T>
void Scale(T* __restrict x, T c, size_t n) {
  for (size_t i = 0; i < n; ++i)
    x[i] *= c;
}

template <typename T>
void Divide(T* __restrict x, T c, size_t n) {
  for (size_t i = 0; i < n; ++i)
    x[i] /= c;
}

template <typename T>
void DivideBy(T* __restrict x, const T* __restrict d, size_t n) {
  for (size_t i = 0; i < n; ++i)
    x[i] /= d[i] == T{0} ? T{1} : d[i];
}

template <typename T>
void AddAgreeing(const T* __restrict vote, const T* __restrict delta, T w, T* __restrict mix,
                 T* __restrict weight, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const T v = w * delta[i];
    const T toward = vote[i] >= T{0} ? v : -v;  // above 0 when v has the elected sign
    mix[i] += toward > T{0} ? v : T{0};
    weight[i] += toward > T{0} ? w : T{0};
  }
}

// --- selection
// ----------------------------------------------------------------------------------------------

template <typename T>
inline uint32_t KeyOf(T delta) {
  return Bits(static_cast<float>(delta)) & 0x7fffffffu;
}

template <typename T>
void KeepAtLeast(T* __restrict delta, uint32_t min_key, size_t n) {
  for (size_t i = 0; i < n; ++i)
    delta[i] = KeyOf(delta[i]) >= min_key ? delta[i] : T{0};
}

template <typename T>
void KeepBelow(T* __restrict delta, uint32_t end_key, size_t n) {
  for (size_t i = 0; i < n; ++i)
    delta[i] = KeyOf(delta[i]) < end_key ? delta[i] : T{0};
}

template <typename T>
void KeepRandom(T* __restrict delta, uint64_t stream, uint64_t first_index, float p, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    delta[i] = UniformAt(stream, first_index + i) < p ? delta[i] : T{0};
  }
}

// --- reductions
// ---------------------------------------------------------------------------------------------

constexpr uint32_t ExponentMask(float) {
  return 0x7f800000u;
}
constexpr uint64_t ExponentMask(double) {
  return 0x7ff0000000000000u;
}

template <typename T>
bool AllFinite(const T* __restrict x, size_t n) {
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i)
    bad |= (Bits(x[i]) & ExponentMask(T{})) == ExponentMask(T{}) ? 1u : 0u;
  return bad == 0;
}

template <typename Stored>
inline bool NoFullExponent(const void* stored, Stored mask, size_t n) {
  const auto* __restrict in = static_cast<const Stored*>(stored);
  Stored bad = 0;
  for (size_t i = 0; i < n; ++i) {
    Stored value;
    __builtin_memcpy(&value, in + i, sizeof value);
    bad = static_cast<Stored>(bad | ((value & mask) == mask ? 1u : 0u));
  }
  return bad == 0;
}

inline bool AllStoredFinite(DType dtype, const void* stored, size_t n) {
  if (dtype == DType::kBF16) return NoFullExponent<uint16_t>(stored, 0x7f80, n);
  if (dtype == DType::kF16) return NoFullExponent<uint16_t>(stored, 0x7c00, n);
  if (dtype == DType::kF32) return NoFullExponent<uint32_t>(stored, ExponentMask(0.0f), n);
  return NoFullExponent<uint64_t>(stored, ExponentMask(0.0), n);
}

inline constexpr size_t kLanes = 16;

inline double AddLanes(const double* lanes) {
  double pairs[kLanes];
  for (size_t i = 0; i < kLanes; ++i)
    pairs[i] = lanes[i];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i)
      pairs[i] += pairs[i + width];
  }
  return pairs[0];
}

template <typename T>
double SumAbs(const T* __restrict x, size_t n) {
  double lanes[kLanes] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k)
      lanes[k] += __builtin_fabs(static_cast<double>(x[i + k]));
  }
  for (size_t i = whole; i < n; ++i)
    lanes[i - whole] += __builtin_fabs(static_cast<double>(x[i]));
  return AddLanes(lanes);
}

template <typename T>
double Dot(const T* __restrict x, const T* __restrict y, size_t n) {
  double lanes[kLanes] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const double product = static_cast<double>(x[i + k]) * static_cast<double>(y[i + k]);
      lanes[k] += product;
    }
  }
  for (size_t i = whole; i < n; ++i) {
    const double product = static_cast<double>(x[i]) * static_cast<double>(y[i]);
    lanes[i - whole] += product;
  }
  return AddLanes(lanes);
}

template <typename T>
void CountHigh(const T* __restrict delta, size_t n, uint32_t* __restrict counts) {
  for (size_t i = 0; i < n; ++i)
    ++counts[KeyOf(delta[i]) >> kLowBits];
}

template <typename T>
void AddLow(const T* __restrict delta, size_t n, uint64_t* __restrict sums) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t key = KeyOf(delta[i]);
    sums[key >> kLowBits] += key & (kLowBuckets - 1);
  }
}

// Few elements lie in the bucket, so runs without any are passed over by a comparison that vectorises.
template <typename T>
void CountLow(const T* __restrict delta, size_t n, uint32_t high, uint32_t* __restrict counts) {
  constexpr size_t kRun = 32;
  const auto count = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const uint32_t key = KeyOf(delta[i]);
      if (key >> kLowBits == high) ++counts[key & (kLowBuckets - 1)];
    }
  };
  const size_t whole = n / kRun * kRun;
  for (size_t at = 0; at < whole; at += kRun) {
    uint32_t hits = 0;
    for (size_t k = 0; k < kRun; ++k)
      hits |= KeyOf(delta[at + k]) >> kLowBits == high ? 1u : 0u;
    if (hits != 0) count(at, at + kRun);
  }
  count(whole, n);
}

template <typename T>
size_t CountEqual(const T* __restrict delta, size_t n, uint32_t key) {
  uint32_t count = 0;
  for (size_t i = 0; i < n; ++i)
    count += KeyOf(delta[i]) == key ? 1u : 0u;
  return count;
}

template <typename T>
uint32_t MaxKey(const T* __restrict x, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t key = KeyOf(x[i]);
    largest = key > largest ? key : largest;
  }
  return largest;
}

template <typename T>
size_t CountNonzero(const T* __restrict x, size_t n) {
  uint32_t count = 0;
  for (size_t i = 0; i < n; ++i)
    count += x[i] != T{0} ? 1u : 0u;
  return count;
}

// --- random projections
// --------------------------------------------------------------------------------------

inline constexpr size_t kSignRuns = 4096;   // where a row's signs may begin
inline constexpr size_t kSketchLanes = 16;  // what moves together when buckets are rotated
inline constexpr size_t kSketchGroups = kSketchBuckets / kSketchLanes;

struct SketchSigns {
  float values[kSignRuns + kSketchBuckets];
};

constexpr SketchSigns MakeSketchSigns() {
  SketchSigns signs{};
  for (size_t i = 0; i < kSignRuns + kSketchBuckets; ++i) {
    uint64_t z = (i / 64 + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z = z ^ (z >> 31);
    signs.values[i] = ((z >> (i % 64)) & 1u) != 0 ? 1.0f : -1.0f;
  }
  return signs;
}

alignas(64) inline constexpr SketchSigns kSketchSigns = MakeSketchSigns();

// Where the signs of a row begin, and by how many groups of buckets it is turned.
struct SketchRow {
  uint32_t signs;
  uint32_t turn;
};

inline SketchRow SketchRowOf(uint64_t row) {
  const uint64_t h = Mix(row + 0x9e3779b97f4a7c15u);
  return {static_cast<uint32_t>(h & (kSignRuns - 1)), static_cast<uint32_t>((h >> 12) & (kSketchGroups - 1))};
}

// Whole rows, group of buckets by group, so that sums stay in registers; rows in their order.
template <typename T>
inline void AddSketchRows(const T* __restrict x, const SketchRow* __restrict rows, size_t count,
                          T* __restrict sums) {
  for (size_t to = 0; to < kSketchGroups; ++to) {
    T group[kSketchLanes];
    for (size_t k = 0; k < kSketchLanes; ++k)
      group[k] = sums[to * kSketchLanes + k];
    for (size_t r = 0; r < count; ++r) {
      const size_t from = ((to - rows[r].turn) & (kSketchGroups - 1)) * kSketchLanes;
      const float* __restrict signs = kSketchSigns.values + rows[r].signs + from;
      const T* __restrict values = x + r * kSketchBuckets + from;
      for (size_t k = 0; k < kSketchLanes; ++k) {
        const T signed_value = static_cast<T>(signs[k]) * values[k];
        group[k] += signed_value;
      }
    }
    for (size_t k = 0; k < kSketchLanes; ++k)
      sums[to * kSketchLanes + k] = group[k];
  }
}

template <typename T>
void AddSketch(const T* __restrict x, size_t n, uint64_t first_row, T* __restrict sums) {
  constexpr size_t kRun = 32;
  SketchRow rows[kRun];
  const size_t whole = n / kSketchBuckets;
  for (size_t at = 0; at < whole; at += kRun) {
    const size_t count = whole - at < kRun ? whole - at : kRun;
    for (size_t r = 0; r < count; ++r)
      rows[r] = SketchRowOf(first_row + at + r);
    AddSketchRows(x + at * kSketchBuckets, rows, count, sums);
  }
  const SketchRow last = SketchRowOf(first_row + whole);
  for (size_t i = whole * kSketchBuckets; i < n; ++i) {
    const size_t k = i - whole * kSketchBuckets;
    const T signed_value = static_cast<T>(kSketchSigns.values[last.signs + k]) * x[i];
    sums[(k + last.turn * kSketchLanes) & (kSketchBuckets - 1)] += signed_value;
  }
}

// Products of 8-bit numbers are multiplied fastest as pairs of 16-bit ones.
inline void WidenSketches(const int8_t* const* sketches, size_t count, int16_t* __restrict wide) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < kSketchBuckets; ++k)
      wide[i * kSketchBuckets + k] = sketches[i][k];
  }
}

inline int32_t SketchProduct(const int16_t* __restrict a, const int16_t* __restrict b) {
  int32_t sum = 0;
  for (size_t k = 0; k < kSketchBuckets; ++k)
    sum += a[k] * b[k];
  return sum;
}

inline void MultiplySketches(const int8_t* const* sketches, size_t count, int32_t* products) {
  constexpr size_t kRun = 16;
  int16_t left[kRun * kSketchBuckets], right[kRun * kSketchBuckets];
  for (size_t i = 0; i < count; i += kRun) {
    const size_t rows = count - i < kRun ? count - i : kRun;
    WidenSketches(sketches + i, rows, left);
    for (size_t j = i; j < count; j += kRun) {
      const size_t columns = count - j < kRun ? count - j : kRun;
      WidenSketches(sketches + j, columns, right);
      for (size_t a = 0; a < rows; ++a) {
        for (size_t b = 0; b < columns; ++b) {
          const int32_t product = SketchProduct(left + a * kSketchBuckets, right + b * kSketchBuckets);
          products[(i + a) * count + j + b] = product;
          products[(j + b) * count + i + a] = product;
        }
      }
    }
  }
}

template <typename T>
constexpr Loops<T> MakeLoops() {
  return {.widen = Widen<T>,
          .narrow = Narrow<T>,
          .delta = Delta<T>,
          .subtract = Subtract<T>,
          .add_to_base = AddToBase<T>,
          .add_scaled = AddScaled<T>,
          .add_fused = AddFused<T>,
          .scale = Scale<T>,
          .divide = Divide<T>,
          .divide_by = DivideBy<T>,
          .add_agreeing = AddAgreeing<T>,
          .keep_at_least = KeepAtLeast<T>,
          .keep_below = KeepBelow<T>,
          .keep_random = KeepRandom<T>,
          .all_finite = AllFinite<T>,
          .all_stored_finite = AllStoredFinite,
          .max_key = MaxKey<T>,
          .count_nonzero = CountNonzero<T>,
          .add_sketch = AddSketch<T>,
          .sum_abs = SumAbs<T>,
          .dot = Dot<T>,
          .count_high = CountHigh<T>,
          .add_low = AddLow<T>,
          .count_low = CountLow<T>,
          .count_equal = CountEqual<T>};
}

}  // namespace
}  // namespace mergepipe::kernels
