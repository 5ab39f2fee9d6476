#include "storage/ledger.h"

#include "base/text.h"

namespace mergepipe {
namespace {

bool IsExpertData(Purpose purpose) {
  return purpose == Purpose::kExpertData || purpose == Purpose::kSample;
}

}  // namespace

size_t Ledger::AddAccount(std::string name) {
  accounts_.push_back(std::make_unique<Account>());
  accounts_.back()->name = std::move(name);
  return accounts_.size() - 1;
}

void Ledger::Charge(size_t account, Purpose purpose, uint64_t bytes) {
  if (IsExpertData(purpose)) expert_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  accounts_[account]->read[static_cast<size_t>(purpose)].fetch_add(bytes, std::memory_order_relaxed);
}

Result<void> Ledger::ReserveExpert(size_t account, Purpose purpose, uint64_t bytes) {
  uint64_t charged = expert_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ || charged > limit_ - bytes) {
      return Fail(Code::kInternal,
                  Format("{}: a read of {} bytes would pass the budget of {}, {} are read; this is a bug",
                         accounts_[account]->name, bytes, limit_, charged));
    }
  } while (!expert_bytes_.compare_exchange_weak(charged, charged + bytes, std::memory_order_relaxed));
  accounts_[account]->read[static_cast<size_t>(purpose)].fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

uint64_t Ledger::Read(size_t account, Purpose purpose) const {
  return accounts_[account]->read[static_cast<size_t>(purpose)].load(std::memory_order_relaxed);
}

uint64_t Ledger::TotalRead(Purpose purpose) const {
  uint64_t total = 0;
  for (size_t i = 0; i < accounts_.size(); ++i)
    total += Read(i, purpose);
  return total;
}

}  // namespace mergepipe
