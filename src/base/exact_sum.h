#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace mergepipe {

/// A sum of doubles without rounding (Kulisch's long accumulator), so that the order of additions, and with
/// it the number of threads and the size of blocks, can not change a result.
class ExactSum {
 public:
  /// Adds one value. NaN and infinities make the sum NaN.
  void Add(double value) {
    if (value == 0) return;
    if (!std::isfinite(value)) {
      finite_ = false;
      return;
    }
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);                  // value = fraction * 2^exponent
    const auto mantissa = static_cast<int64_t>(std::ldexp(fraction, 53));  // exact: 53 significant bits
    const int shift = exponent - 53 + kBias;                               // weight of mantissa's lowest bit
    const auto digit = static_cast<size_t>(shift) / kDigitBits;
    const auto offset = static_cast<unsigned>(shift) % kDigitBits;
    const bool negative = mantissa < 0;
    const auto magnitude = static_cast<Wide>(negative ? -mantissa : mantissa) << offset;
    for (size_t i = 0; i < 3; ++i) {
      const auto part = static_cast<int64_t>(static_cast<uint32_t>(magnitude >> (i * kDigitBits)));
      digits_[digit + i] += negative ? -part : part;
    }
    if (++pending_ == kMaxPending) Normalize();
  }

  /// Adds all that another sum holds.
  void Merge(const ExactSum& other) {
    ExactSum copy = other;
    copy.Normalize();
    Normalize();
    finite_ = finite_ && other.finite_;
    for (size_t i = 0; i < kDigits; ++i)
      digits_[i] += copy.digits_[i];
    Normalize();
  }

  /// The sum as a double, within two units in the last place; a function of the exact sum alone.
  double Value() const {
    if (!finite_) return std::nan("");
    ExactSum copy = *this;
    copy.Normalize();
    const bool negative = copy.digits_[kDigits - 1] < 0;
    if (negative) {
      for (int64_t& digit : copy.digits_)
        digit = -digit;
      copy.Normalize();
    }
    double sum = 0;
    for (size_t i = 0; i < kDigits; ++i) {
      sum += std::ldexp(static_cast<double>(copy.digits_[i]), static_cast<int>(i * kDigitBits) - kBias);
    }
    return negative ? -sum : sum;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr unsigned kDigitBits = 32;
  static constexpr int kBias = 1152;  // more than 1074 + 53: the smallest subnormal's weight stays positive
  static constexpr size_t kDigits = 74;              // (1152 + 1024 + 128) / 32, with room for carries
  static constexpr uint32_t kMaxPending = 1u << 30;  // every digit has 31 spare bits

  // Carries so that every digit but the last lies in [0, 2^32): the one representation of this sum.
  void Normalize() {
    int64_t carry = 0;
    for (size_t i = 0; i + 1 < kDigits; ++i) {
      digits_[i] += carry;
      carry = digits_[i] >> kDigitBits;
      digits_[i] -= carry * (int64_t{1} << kDigitBits);
    }
    digits_[kDigits - 1] += carry;
    pending_ = 0;
  }

  std::array<int64_t, kDigits> digits_{};
  uint32_t pending_ = 0;
  bool finite_ = true;
};

}  // namespace mergepipe
