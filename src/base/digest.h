#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's; its headers stay in digest.cc

namespace mergepipe {

/// A 128-bit content digest (XXH3): identity and corruption checks of bulk data at memory speed. Not
/// cryptographic.
struct Digest128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Digest128&) const = default;
};

/// Digest of a range of bytes.
Digest128 DigestOf(std::span<const std::byte> bytes);

/// Digest of a list of digests, in order: one inner node of a digest tree.
Digest128 DigestOf(std::span<const Digest128> children);

/// 32 hexadecimal digits, high word first.
std::string Hex(const Digest128& digest);

/// A 64-bit hash of text with a seed, stable across versions and machines; keys random streams.
uint64_t Hash64(std::string_view text, uint64_t seed);

/// SHA-256 of text that comes in pieces.
class Sha256 {
 public:
  Sha256();
  void Update(std::string_view text);
  /// 64 hexadecimal digits of all that came; ends the computation.
  std::string FinishHex();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// SHA-256 of text as 64 hexadecimal digits; for everything that is small and published (plans, manifests).
std::string Sha256Hex(std::string_view text);

}  // namespace mergepipe
