#include "storage/ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Succeeds;

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

TEST(Ledger, AReservationWithinTheBudgetIsACharge) {
  Ledger ledger;
  const size_t account = ledger.AddAccount("expert");
  ledger.LimitExpertBytes(100);
  EXPECT_THAT(ledger.ReserveExpert(account, Purpose::kExpertData, 60), Succeeds());
  EXPECT_THAT(ledger.ReserveExpert(account, Purpose::kSample, 40), Succeeds());
  EXPECT_EQ(ledger.Read(account, Purpose::kExpertData), 60u);
  EXPECT_EQ(ledger.Read(account, Purpose::kSample), 40u);
}

TEST(Ledger, AReservationThatWouldPassTheBudgetIsRefusedAndChargesNothing) {
  Ledger ledger;
  const size_t account = ledger.AddAccount("expert");
  ASSERT_THAT(ledger.ReserveExpert(account, Purpose::kSample, 30), Succeeds()) << "without a budget";
  ledger.LimitExpertBytes(100);
  for (const uint64_t bytes : {uint64_t{71}, uint64_t{101}, ~uint64_t{0}, ~uint64_t{0} - 29}) {
    EXPECT_THAT(ledger.ReserveExpert(account, Purpose::kExpertData, bytes),
                FailsWith(Code::kInternal, "expert: a read of"));
    EXPECT_EQ(ledger.TotalRead(Purpose::kExpertData), 0u);
  }
  EXPECT_THAT(ledger.ReserveExpert(account, Purpose::kExpertData, 70), Succeeds());
  EXPECT_THAT(ledger.ReserveExpert(account, Purpose::kExpertData, 0), Succeeds());
  EXPECT_THAT(ledger.ReserveExpert(account, Purpose::kSample, 1), FailsWith(Code::kInternal, "100 are read"));
}

TEST(Ledger, WhatWasChargedOtherwiseCountsForTheBudgetWhereItIsExpertData) {
  Ledger ledger;
  const size_t account = ledger.AddAccount("expert");
  for (const Purpose free : {Purpose::kHeader, Purpose::kBaseData, Purpose::kSideFile, Purpose::kAlignment})
    ledger.Charge(account, free, 1'000);
  ledger.Charge(account, Purpose::kExpertData, 50);
  ledger.LimitExpertBytes(60);
  EXPECT_FALSE(ledger.ReserveExpert(account, Purpose::kExpertData, 11));
  EXPECT_TRUE(ledger.ReserveExpert(account, Purpose::kExpertData, 10));
}

TEST(Ledger, ABudgetThatIsAlreadyPassedGivesNothing) {
  Ledger ledger;
  const size_t account = ledger.AddAccount("expert");
  ledger.Charge(account, Purpose::kExpertData, 50);
  ledger.LimitExpertBytes(40);
  EXPECT_FALSE(ledger.ReserveExpert(account, Purpose::kExpertData, 1));
  EXPECT_EQ(ledger.TotalRead(Purpose::kExpertData), 50u);
}

TEST(Ledger, ThreadsTogetherReserveJustTheBudget) {
  Ledger ledger;
  const size_t account = ledger.AddAccount("shared");
  constexpr uint64_t kBudget = 3 * 10'000 + 1;
  ledger.LimitExpertBytes(kBudget);
  std::atomic<uint64_t> granted{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const Purpose purpose = t % 2 == 0 ? Purpose::kSample : Purpose::kExpertData;
        for (int i = 0; i < 10'000; ++i)
          granted += ledger.ReserveExpert(account, purpose, 3) ? 3 : 0;
      });
    }
  }
  EXPECT_EQ(granted, kBudget - 1);
  EXPECT_EQ(ledger.TotalRead(Purpose::kExpertData) + ledger.TotalRead(Purpose::kSample), granted);
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
