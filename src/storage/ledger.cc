#include "storage/ledger.h"

namespace mergepipe {

size_t Ledger::AddAccount(std::string name) {
  accounts_.push_back(std::make_unique<Account>());
  accounts_.back()->name = std::move(name);
  return accounts_.size() - 1;
}

void Ledger::Charge(size_t account, Purpose purpose, uint64_t bytes) {
  accounts_[account]->read[static_cast<size_t>(purpose)].fetch_add(bytes, std::memory_order_relaxed);
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
