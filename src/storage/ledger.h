#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "mergepipe/result.h"

namespace mergepipe {

/// Why bytes move. Headers and base bytes are not expert data; see docs/design.md, "Budget".
enum class Purpose : uint8_t { kHeader, kBaseData, kExpertData, kSample, kSideFile, kAlignment };
inline constexpr size_t kPurposes = 6;

/// Counts bytes by checkpoint and purpose at the place where storage is read, and keeps the budget there.
/// Samples are counted apart from other expert data; the budget holds for both. Safe for concurrent use.
class Ledger {
 public:
  /// Opens an account and returns its number. Not safe beside other calls.
  size_t AddAccount(std::string name);

  void Charge(size_t account, Purpose purpose, uint64_t bytes);
  /// Sets the budget: no more expert bytes than this, samples and what was charged so far included.
  void LimitExpertBytes(uint64_t bytes) { limit_ = bytes; }
  /// Charges expert data (kExpertData, kSample) that is about to be read. Fails with kInternal, charging
  /// nothing, where it would pass the budget.
  Result<void> ReserveExpert(size_t account, Purpose purpose, uint64_t bytes);

  void ChargeWrite(uint64_t bytes) { written_.fetch_add(bytes, std::memory_order_relaxed); }

  size_t Accounts() const { return accounts_.size(); }
  const std::string& Name(size_t account) const { return accounts_[account]->name; }
  uint64_t Read(size_t account, Purpose purpose) const;
  uint64_t TotalRead(Purpose purpose) const;
  uint64_t Written() const { return written_.load(std::memory_order_relaxed); }

 private:
  struct Account {
    std::string name;
    std::array<std::atomic<uint64_t>, kPurposes> read{};
  };
  std::vector<std::unique_ptr<Account>> accounts_;
  std::atomic<uint64_t> expert_bytes_{0};
  uint64_t limit_ = std::numeric_limits<uint64_t>::max();
  std::atomic<uint64_t> written_{0};
};

}  // namespace mergepipe
