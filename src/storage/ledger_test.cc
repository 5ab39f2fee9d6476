#include "storage/ledger.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace mergepipe {
namespace {

TEST(Ledger, KeepsCheckpointsAndPurposesApart) {
  Ledger ledger;
  const size_t base = ledger.AddAccount("base");
  const size_t expert = ledger.AddAccount("expert");
  ledger.Charge(base, Purpose::kBaseData, 10);
  ledger.Charge(expert, Purpose::kExpertData, 20);
  ledger.Charge(expert, Purpose::kExpertData, 3);
  ledger.Charge(expert, Purpose::kHeader, 4);
  EXPECT_EQ(ledger.Accounts(), 2u);
  EXPECT_EQ(ledger.Name(expert), "expert");
  EXPECT_EQ(ledger.Read(base, Purpose::kBaseData), 10u);
  EXPECT_EQ(ledger.Read(base, Purpose::kExpertData), 0u);
  EXPECT_EQ(ledger.Read(expert, Purpose::kExpertData), 23u);
  EXPECT_EQ(ledger.Read(expert, Purpose::kHeader), 4u);
}

TEST(Ledger, TotalsAddUpOverCheckpoints) {
  Ledger ledger;
  for (uint64_t i = 0; i < 5; ++i)
    ledger.Charge(ledger.AddAccount("model"), Purpose::kExpertData, i);
  EXPECT_EQ(ledger.TotalRead(Purpose::kExpertData), 10u);
  EXPECT_EQ(ledger.TotalRead(Purpose::kAlignment), 0u);
}

TEST(Ledger, NoByteIsLostBetweenThreads) {
  Ledger ledger;
  const size_t account = ledger.AddAccount("shared");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20'000; ++i) {
          ledger.Charge(account, Purpose::kExpertData, 3);
          ledger.ChargeWrite(2);
        }
      });
    }
  }
  EXPECT_EQ(ledger.Read(account, Purpose::kExpertData), 4u * 20'000 * 3);
  EXPECT_EQ(ledger.Written(), 4u * 20'000 * 2);
}

}  // namespace
}  // namespace mergepipe
