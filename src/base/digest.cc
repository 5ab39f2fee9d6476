#include "base/digest.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include "base/text.h"

namespace mergepipe {

Digest128 DigestOf(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

Digest128 DigestOf(std::span<const Digest128> children) {
  return DigestOf(std::as_bytes(children));
}

std::string Hex(const Digest128& digest) {
  return Format("{:016x}{:016x}", digest.high, digest.low);
}

uint64_t Hash64(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
}

void Sha256::Update(std::string_view text) {
  EVP_DigestUpdate(context_.get(), text.data(), text.size());
}

std::string Sha256::FinishHex() {
  std::array<unsigned char, 32> hash{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_.get(), hash.data(), &size);
  std::string hex;
  for (const unsigned char byte : hash)
    hex += Format("{:02x}", byte);
  return hex;
}

std::string Sha256Hex(std::string_view text) {
  Sha256 sha;
  sha.Update(text);
  return sha.FinishHex();
}

}  // namespace mergepipe
