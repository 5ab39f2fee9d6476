#include "api/saved_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "planner/decision.h"
#include "support/families.h"
#include "support/files.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::FailsWith;
using tests::Must;
using tests::RecipeOf;
using tests::Succeeds;
using tests::TempFolder;

class SavedPlanTest : public testing::Test {
 protected:
  void SetUp() override {
    tests::WriteFamily(folder_.path(), {.seed = 2});
    tests::WriteFile(folder_ / "recipe.yml",
                     tests::Replace(RecipeOf("ties", 3, "{density: 0.4}"), "~/", folder_.path() + "/"));
  }
  MergeRequest Request(const std::string& budget = "40%") const {
    return {.recipe_path = folder_ / "recipe.yml",
            .block_bytes = tests::kSmallBlock,
            .seed = 5,
            .budget = budget,
            .catalog = folder_ / "catalog.db",
            .run = {.threads = 2, .memory_bytes = 64u << 20}};
  }
  void Analyse() const {
    AnalyzeRequest request{
        .base = folder_ / "base", .block_bytes = tests::kSmallBlock, .catalog = folder_ / "catalog.db"};
    for (const char* expert : {"expert1", "expert2", "expert3"})
      request.experts.push_back(folder_ / expert);
    request.densities = {0.4};
    Must(mergepipe::Analyze(request));
  }
  Planned Save(const std::string& budget = "40%") {
    const MergeRequest request = Request(budget);
    Planned planned = Must(PlanRequest(request, Must(LoadRecipe(request)), nullptr));
    Must(SavePlan(file(), planned.plan, planned.recipe, request));
    return planned;
  }
  // Plans again what a file says.
  Result<Plan> Load() const {
    SavedPlan saved = MP_TRY(LoadPlan(file()));
    saved.request.run.memory_bytes = saved.memory_bytes;
    Planned planned = MP_TRY(PlanRequest(saved.request, saved.recipe, &saved.decision));
    MP_TRY(CheckStamps(saved, planned.merge()));
    planned.plan.expected = saved.Expected(planned.merge());
    return std::move(planned.plan);
  }
  Json Read() const { return Must(ParseJson(tests::ReadFile(file()), file())); }
  // With the digest that the changed text has, as who means harm would do.
  void Write(Json json, bool sealed = true) const {
    json.erase("digest");
    json["digest"] = sealed ? Sha256Hex(json.dump()) : "0";
    tests::WriteFile(file(), json.dump());
  }
  std::string file() const { return folder_ / "plan.json"; }

  TempFolder folder_;
};

TEST_F(SavedPlanTest, ComesBackAsItWas) {
  for (const bool known : {false, true}) {
    if (known) Analyse();
    for (const char* budget : {"", "40%", "100%"}) {
      const Plan plan = Save(budget).plan;
      const Plan back = Must(Load());
      EXPECT_EQ(back.digest, plan.digest) << known << " " << budget;
      EXPECT_EQ(back.expected, plan.expected);
      EXPECT_EQ(back.identities, plan.identities);
      EXPECT_EQ(back.costs.expert_read_bytes, plan.costs.expert_read_bytes);
      EXPECT_EQ(BudgetJson(back), BudgetJson(plan));
      EXPECT_EQ(back.options.block_bytes, plan.options.block_bytes);
      EXPECT_EQ(back.options.memory_bytes, plan.options.memory_bytes);
      EXPECT_EQ(back.merge->seed, 5u);
    }
  }
}

TEST_F(SavedPlanTest, NeedsNoCatalogAnyMore) {
  Analyse();
  const Plan plan = Save().plan;
  tests::WriteFile(folder_ / "catalog.db", "no catalog");
  EXPECT_EQ(Must(Load()).digest, plan.digest);
}

TEST_F(SavedPlanTest, LeavesNothingBesideIt) {
  Save();
  EXPECT_EQ(tests::ReadTree(folder_.path()).count("plan.json.part"), 0u);
  const MergeRequest request = Request();
  const Planned planned = Must(PlanRequest(request, Must(LoadRecipe(request)), nullptr));
  EXPECT_FALSE(SavePlan(folder_ / "nowhere/plan.json", planned.plan, planned.recipe, request));
}

// --- what is no plan

TEST_F(SavedPlanTest, AnyChangedByteIsNoticed) {
  Save();
  const std::string text = tests::ReadFile(file());
  std::mt19937 random(1);
  for (int round = 0; round < 150; ++round) {
    std::string changed = text;
    char& byte = changed[random() % changed.size()];
    byte = static_cast<char>(byte ^ (1 << random() % 8));
    tests::WriteFile(file(), changed);
    const auto plan = Load();
    if (!plan) {
      EXPECT_EQ(plan.error().code, Code::kInvalidInput) << plan.error().message;
    } else {  // white space, which says nothing
      EXPECT_EQ(Must(ParseJson(changed, "")), Must(ParseJson(text, "")));
    }
  }
}

TEST_F(SavedPlanTest, TextThatWasCutOffIsNoPlan) {
  Save();
  const std::string text = tests::ReadFile(file());
  for (const size_t size : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 3}) {
    tests::WriteFile(file(), text.substr(0, size));
    EXPECT_THAT(LoadPlan(file()), FailsWith(Code::kInvalidInput, "plan.json")) << size;
  }
  for (const char* other : {"[]", "7", "{}", R"({"schema": "mergepipe.manifest/1"})"}) {
    tests::WriteFile(file(), other);
    EXPECT_THAT(LoadPlan(file()), FailsWith(Code::kInvalidInput, "is no plan of the format")) << other;
  }
}

TEST_F(SavedPlanTest, OfAnotherVersionIsUnsupported) {
  Save();
  Json json = Read();
  json["version"] = "0.0.1";
  Write(json);
  EXPECT_THAT(LoadPlan(file()), FailsWith(Code::kUnsupported, "another version"));
}

TEST_F(SavedPlanTest, WithoutItsDigestIsChanged) {
  Save();
  Json json = Read();
  Write(json, /*sealed=*/false);
  EXPECT_THAT(LoadPlan(file()), FailsWith(Code::kInvalidInput, "does not have the digest"));
  json.erase("digest");
  tests::WriteFile(file(), json.dump());
  EXPECT_THAT(LoadPlan(file()), FailsWith(Code::kInvalidInput, "does not have the digest"));
}

TEST_F(SavedPlanTest, FieldsThatAreMissingOrOfAnotherTypeAreErrorsOrMakeNoDifference) {
  const std::string digest = Save().plan.digest;
  const Json json = Read();
  for (const auto& [key, value] : json.items()) {
    if (key == "digest" || key == "version" || key == "schema" || key == "method") continue;
    for (const Json& other : {Json(), Json(7), Json("x"), Json::array(), Json::object()}) {
      Json changed = json;
      changed[key] = other;
      Write(changed);
      const auto plan = Load();
      ASSERT_TRUE(plan || plan.error().code == Code::kInvalidInput || plan.error().code == Code::kUsage)
          << key << " " << other;
      EXPECT_EQ(plan ? plan->digest : digest, digest) << key << " " << other;
    }
  }
}

void Tamper(Json& json, std::mt19937& random) {
  const std::vector<Json> values = {nullptr, -1,   0,    1,  16'384, 1ull << 63,    1.5,
                                    "gram",  "10", true, "", "full", Json::array(), Json::object()};
  Json* at = &json;
  while (at->is_structured() && !at->empty() && random() % 10 != 0) {
    auto child = at->begin();
    std::advance(child, static_cast<std::ptrdiff_t>(random() % at->size()));
    at = &*child;
  }
  *at = values[random() % values.size()];
}

TEST_F(SavedPlanTest, WhoTampersAndSealsAnewGetsAnErrorAndNoOtherOutput) {
  Analyse();
  const Plan plan = Save().plan;
  const Json json = Read();
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Json changed = json;
    Tamper(changed, random);
    if (!changed.is_object()) continue;
    Write(changed);
    const auto loaded = Load();
    EXPECT_EQ(loaded ? loaded->digest : plan.digest, plan.digest);
  }
}

// --- inputs that changed

TEST_F(SavedPlanTest, InputsWithOtherHeadersAreNamed) {
  Save();
  tests::WriteFamily(folder_.path(), {.seed = 7});
  EXPECT_THAT(Load(), FailsWith(Code::kInvalidInput, "changed since the plan was made: its headers differ"));
}

TEST_F(SavedPlanTest, FilesThatAreOthersAreTakenOnlyWhereTheirDigestsAreKnown) {
  Save();
  const std::string path = folder_ / "expert2/model.safetensors";
  const std::string bytes = tests::ReadFile(path);
  tests::WriteFile(path, bytes);
  EXPECT_THAT(Load(), FailsWith(Code::kInvalidInput, "its files are not the same ones"));
  Analyse();
  Save();
  tests::WriteFile(path, bytes);
  EXPECT_THAT(Load(), Succeeds());
}

TEST_F(SavedPlanTest, StampsAreOfEveryShardOfEveryModel) {
  Save();
  SavedPlan saved = Must(LoadPlan(file()));
  ASSERT_EQ(saved.stamps.size(), 4u);
  const Planned planned = Must(PlanRequest(saved.request, saved.recipe, &saved.decision));
  EXPECT_THAT(CheckStamps(saved, planned.merge()), Succeeds());
  for (size_t m = 0; m < 4; ++m) {
    SavedPlan other = saved;
    other.stamps[m].clear();
    EXPECT_FALSE(CheckStamps(other, planned.merge())) << m;
    other = saved;
    other.stamps[m][0].mtime_ns += 1;
    EXPECT_FALSE(CheckStamps(other, planned.merge())) << m;
    other = saved;
    other.stamps.resize(m);
    EXPECT_FALSE(CheckStamps(other, planned.merge())) << m;
  }
}

TEST_F(SavedPlanTest, ExpectedDigestsOfAnotherNumberOfSourcesAreNone) {
  Analyse();
  Save();
  SavedPlan saved = Must(LoadPlan(file()));
  const Planned planned = Must(PlanRequest(saved.request, saved.recipe, &saved.decision));
  saved.expected.at("b.bf16").pop_back();
  saved.expected.erase("c.f32");
  const auto expected = saved.Expected(planned.merge());
  for (size_t t = 0; t < expected.size(); ++t) {
    const std::string& name = planned.merge().tensors[t].name;
    EXPECT_EQ(expected[t].empty(), name == "b.bf16" || name == "c.f32") << name;
  }
}

}  // namespace
}  // namespace mergepipe
