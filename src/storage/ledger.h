#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mergepipe {

/// Why bytes move. Headers and base bytes are not expert data; see docs/design.md, "Budget".
enum class Purpose : uint8_t { kHeader, kBaseData, kExpertData, kSideFile, kAlignment };
inline constexpr size_t kPurposes = 5;

/// Counts bytes by checkpoint and purpose at the place where storage is read. Safe for concurrent use.
class Ledger {
 public:
  /// Opens an account and returns its number. Not safe beside other calls.
  size_t AddAccount(std::string name);

  void Charge(size_t account, Purpose purpose, uint64_t bytes);
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
  std::atomic<uint64_t> written_{0};
};

}  // namespace mergepipe
