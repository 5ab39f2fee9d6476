#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace mergepipe {

/// Gives each token text of a merge one number, so that vocabularies are lists of numbers.
class TokenTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t Intern(const std::string& token) {
    const auto [at, inserted] = numbers_.try_emplace(token, static_cast<uint32_t>(texts_.size()));
    if (inserted) texts_.push_back(&at->first);
    return at->second;
  }
  /// kNone where nobody has it.
  uint32_t Find(const std::string& token) const {
    const auto found = numbers_.find(token);
    return found == numbers_.end() ? kNone : found->second;
  }
  const std::string& Text(uint32_t token) const { return *texts_[token]; }
  size_t size() const { return texts_.size(); }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<const std::string*> texts_;  // keys of the map, which stay where they are
};

}  // namespace mergepipe
