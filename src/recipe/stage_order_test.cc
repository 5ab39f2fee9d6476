#include "recipe/stage_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using tests::Must;

struct Spec {
  std::string name;
  std::vector<std::string> models;
};

std::vector<Recipe> RecipesOf(const std::vector<Spec>& specs) {
  std::vector<Recipe> recipes;
  for (const Spec& spec : specs) {
    std::string text = spec.name.empty() ? "" : Format("name: {}\n", spec.name);
    text += "merge_method: linear\nmodels:\n";
    for (const std::string& model : spec.models)
      text += Format("- {{model: {}}}\n", model);
    recipes.push_back(Must(ParseRecipe(text, "r.yml", static_cast<int>(100 * recipes.size() + 1))));
  }
  return recipes;
}

StageOrder OrderOf(const std::vector<Spec>& specs) {
  return Must(OrderStages(RecipesOf(specs)));
}

std::string FaultsOf(const std::vector<Spec>& specs) {
  const auto order = OrderStages(RecipesOf(specs));
  if (order) return "";
  std::string all = order.error().message;
  for (const std::string& fault : order.error().faults)
    all += "\n" + fault;
  return all;
}

TEST(StageOrder, IsThatOfTheFileWhereNothingElseIsAsked) {
  const StageOrder order = OrderOf({{"a", {"m"}}, {"b", {"m"}}, {"", {"a", "b", "a"}}});
  EXPECT_THAT(order.order, ElementsAre(0, 1, 2));
  EXPECT_THAT(order.needs, ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(0, 1)));
  EXPECT_EQ(order.result, 2u);
}

TEST(StageOrder, PutsWhatIsNeededFirst) {
  const StageOrder order = OrderOf({{"c", {"b"}}, {"b", {"a"}}, {"a", {"m"}}, {"d", {"a"}}});
  EXPECT_THAT(order.order, ElementsAre(2, 1, 0, 3));
  EXPECT_EQ(order.result, 3u) << "the last that no other needs";
}

TEST(StageOrder, OfAnUnnamedRecipeThatComesFirst) {
  const StageOrder order = OrderOf({{"", {"a"}}, {"a", {"m"}}, {"b", {"m"}}});
  EXPECT_THAT(order.order, ElementsAre(1, 0, 2));
  EXPECT_EQ(order.result, 0u);
}

TEST(StageOrder, GoesByWholeNames) {
  const StageOrder order = OrderOf({{"a", {"m"}}, {"", {"./a", "a/b", "A", "a@main"}}});
  EXPECT_THAT(order.needs[1], ElementsAre(0)) << "a revision is no part of the name";
  EXPECT_THAT(OrderOf({{"a", {"m"}}, {"", {"./a", "a/b", "A"}}}).needs[1], IsEmpty());
}

TEST(StageOrder, TellsCircles) {
  EXPECT_THAT(FaultsOf({{"a", {"a"}}}), HasSubstr("'a' needs 'a'"));
  EXPECT_THAT(FaultsOf({{"s", {"m"}}, {"a", {"c", "s"}}, {"b", {"a"}}, {"c", {"b"}}, {"", {"a"}}}),
              AllOf(HasSubstr("r.yml:101:7"), HasSubstr("'a' needs 'c' needs 'b' needs 'a'")));
}

TEST(StageOrder, TellsAllFaultsOfNamesAtOnce) {
  EXPECT_THAT(FaultsOf({{"a", {"m"}}, {"a", {"m"}}, {"", {"m"}}, {"", {"m"}}}),
              AllOf(HasSubstr("r.yml:101:7: the recipe in line 1 has the name 'a' already"),
                    HasSubstr("r.yml:301:1: of the recipes"), HasSubstr("line 201")));
}

}  // namespace
}  // namespace mergepipe
