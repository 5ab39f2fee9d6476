#include "planner/budget.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;

uint64_t Share(const std::string& percent, uint64_t full) {
  return Must(ParseBudget(percent)).Bytes(full).value();
}

TEST(Budget, OfASizeIsThatSize) {
  EXPECT_EQ(Must(ParseBudget("123456")).Bytes(7), 123456u);
  EXPECT_EQ(Must(ParseBudget("8GiB")).Bytes(7), 8ull << 30);
  EXPECT_EQ(Must(ParseBudget("1.5KiB")).Bytes(7), 1536u);
  EXPECT_EQ(Must(ParseBudget("0")).Bytes(7), 0u);
}

TEST(Budget, OfOtherKindsIsNoNumberOfBytes) {
  EXPECT_EQ(Budget{}.Bytes(100), std::nullopt);
  EXPECT_EQ((Budget{.kind = Budget::Kind::kDeviation, .deviation = 0.1}.Bytes(100)), std::nullopt);
}

TEST(Budget, WholePercentsAreExactHoweverLargeTheMerge) {
  for (const uint64_t full :
       {1ull, 99ull, 100ull, 12345ull, (1ull << 53) + 1, 15'000'000'000'000'007ull, (1ull << 57) - 1}) {
    for (uint64_t percent = 0; percent <= 100; ++percent) {
      const uint64_t exact = full / 100 * percent + full % 100 * percent / 100;
      EXPECT_EQ(Share(Format("{}%", percent), full), exact) << percent << "% of " << full;
    }
  }
}

TEST(Budget, DecimalSharesAreThoseThatAreWritten) {
  for (uint64_t thousandths = 1; thousandths < 1'000; ++thousandths) {
    const std::string percent = Format("0.{:03}%", thousandths);
    EXPECT_EQ(Share(percent, 100'000), thousandths) << percent;
    EXPECT_EQ(Share(percent, 100'000 * 1'048'576ull), thousandths * 1'048'576) << percent;
    EXPECT_EQ(Share(percent, 100'000 - 1), thousandths - 1) << percent;
  }
}

TEST(Budget, MoreThanEverythingStaysANumber) {
  EXPECT_EQ(Share("200%", 50), 100u);
  EXPECT_EQ(Share("200%", ~0ull), ~0ull);
  EXPECT_EQ(Share("1e30%", 50), ~0ull);
}

TEST(Budget, OfNoShareAndNoSizeIsRefused) {
  for (const char* bad : {"", "%", "-1%", "ten%", "10 %%", "nan%", "inf%", "-inf%", "10%%"})
    EXPECT_THAT(ParseBudget(bad), FailsWith(Code::kUsage, Format("budget '{}'", bad))) << bad;
  for (const char* bad : {"-5", "8 parsecs", "nan", "inf", "1e300"})
    EXPECT_THAT(ParseBudget(bad), FailsWith(Code::kUsage, Format("budget '{}'", bad))) << bad;
}

TEST(Policies, HaveTheirNamesBothWays) {
  for (const std::string& name : PolicyNames())
    EXPECT_EQ(PolicyName(Must(ParsePolicy(name))), name);
  EXPECT_EQ(Must(ParsePolicy("gram")), Policy::kGram);
  EXPECT_EQ(Must(ParsePolicy("random")), Policy::kRandom);
}

TEST(Policies, ThatNobodyKnowsNameTheNearest) {
  EXPECT_THAT(ParsePolicy("grma"), FailsWith(Code::kUsage, "did you mean 'gram'?"));
  EXPECT_THAT(ParsePolicy("unifrom"), FailsWith(Code::kUsage, "did you mean 'uniform'?"));
  EXPECT_THAT(ParsePolicy("zzzzzzzz"), FailsWith(Code::kUsage, "gram, norm, uniform, fair, random"));
  EXPECT_THAT(ParsePolicy(""), FailsWith(Code::kUsage, "is none of"));
}

}  // namespace
}  // namespace mergepipe
