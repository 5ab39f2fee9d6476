#include "executor/scan.h"

#include <gtest/gtest.h>

#include <array>

#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;

TEST(ParallelScan, RunsEveryItemOnce) {
  for (const size_t workers : {size_t{1}, size_t{3}, size_t{8}}) {
    std::array<std::atomic<int>, 500> times{};
    Must(ParallelScan(times.size(), workers, nullptr, [&](size_t worker, uint64_t item) -> Result<void> {
      EXPECT_LT(worker, workers);
      ++times[item];
      return {};
    }));
    for (const auto& count : times)
      EXPECT_EQ(count, 1);
  }
}

TEST(ParallelScan, AnErrorStopsTheRest) {
  std::atomic<uint64_t> done{0};
  const auto result = ParallelScan(1'000'000, 4, nullptr, [&](size_t, uint64_t item) -> Result<void> {
    ++done;
    if (item == 10) return Fail(Code::kIo, "item 10 is bad");
    return {};
  });
  EXPECT_THAT(result, FailsWith(Code::kIo, "item 10 is bad"));
  EXPECT_LT(done, 1'000'000u);
}

TEST(ParallelScan, ASignalInterruptsIt) {
  const std::atomic<int> signal{2};
  const auto never = [](size_t, uint64_t) -> Result<void> { return Fail(Code::kInternal, "ran"); };
  EXPECT_THAT(ParallelScan(5, 2, &signal, never), FailsWith(Code::kInterrupted, "interrupted"));
}

TEST(ParallelScan, MemoryThatRunsOutIsAnError) {
  const auto body = [](size_t, uint64_t item) -> Result<void> {
    if (item == 1) throw std::bad_alloc();
    return {};
  };
  EXPECT_THAT(ParallelScan(3, 2, nullptr, body), FailsWith(Code::kTransient, "memory ran out"));
}

TEST(ScanWorkers, AreAsManyAsTheMemoryHolds) {
  EXPECT_EQ(Must(ScanWorkers({.threads = 2, .memory_bytes = 3000}, 1000)), 3u);
  EXPECT_EQ(Must(ScanWorkers({.threads = 2, .memory_bytes = 1u << 30}, 1000)), 8u);
  EXPECT_EQ(Must(ScanWorkers({.threads = 20, .memory_bytes = 1u << 30}, 1000)), 20u);
  EXPECT_THAT(ScanWorkers({.threads = 2, .memory_bytes = 999}, 1000),
              FailsWith(Code::kUsage, "is too little"));
}

}  // namespace
}  // namespace mergepipe
