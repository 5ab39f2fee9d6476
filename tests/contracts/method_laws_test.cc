#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "mergepipe/mergepipe.h"
#include "support/array_merge.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using tests::ArrayMerge;
using tests::Cuts;
using tests::MergeArrays;
using tests::Moved;
using tests::Must;
using tests::RandomFloats;
using tests::Set;

constexpr size_t kCount = 40'000;  // enough for every way of counting
constexpr size_t kRows = 64;

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Laws that hold for every method there is: a new one is tested by being in the table.
class EveryMethod : public testing::TestWithParam<const Method*> {
 protected:
  const Method& method() const { return *GetParam(); }
  bool works_on_deltas() const { return method().domain == Domain::kDeltas; }

  // Four models, or as many as the method takes.
  size_t InputCount() const {
    const size_t base = works_on_deltas() && method().needs_base ? 1 : 0;
    const size_t most = method().max_inputs == SIZE_MAX ? 4 : method().max_inputs;
    return std::max(method().min_inputs, std::min<size_t>(most, 4)) - base;
  }

  // Every parameter at its default, or trimming, normalising and rescaling switched on.
  ArrayMerge Make(std::vector<float> base, const std::vector<std::vector<float>>& inputs, bool busy) const {
    ArrayMerge merge = tests::WithDefaults(method().name, std::move(base), inputs);
    merge.shape = {kRows, kCount / kRows};
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (merge.params.inputs[i].count("weight") > 0)
        merge.params.inputs[i]["weight"] = 0.3 + 0.2 * static_cast<double>(i);
    }
    if (!busy) return merge;
    for (const auto& [name, value] :
         {std::pair("density", 0.37), std::pair("normalize", 1.0), std::pair("rescale", 1.0),
          std::pair("lambda", 1.1), std::pair("scale", 0.9), std::pair("gamma", 0.05),
          std::pair("select_topk", 0.3), std::pair("filter_wise", 1.0), std::pair("nuslerp_flatten", 0.0),
          std::pair("max_iter", 3.0)})
      Set(merge, name, value);
    return merge;
  }

  ArrayMerge Random(bool busy, double scale = 0.1) const {
    const std::vector<float> base = RandomFloats(kCount, 1);
    std::vector<std::vector<float>> inputs;
    for (uint32_t i = 0; i < InputCount(); ++i)
      inputs.push_back(i == 0 && !works_on_deltas() ? base : Moved(base, 20 + i, scale));
    return Make(base, inputs, busy);
  }

  // Deltas of few distinct magnitudes, so that trimming cuts among equals.
  ArrayMerge Coarse() const {
    ArrayMerge merge = Random(/*busy=*/true);
    for (std::vector<float>& input : merge.inputs) {
      for (size_t k = 0; k < kCount; ++k)
        input[k] = std::round(input[k] * 8) / 8;
    }
    for (float& value : merge.base)
      value = std::round(value * 8) / 8;
    return merge;
  }
};

/// Laws of those that have a base to fall back to.
using EveryDeltaMethod = EveryMethod;
/// Laws of those that weigh each task vector.
using EveryTaskVectorMethod = EveryMethod;

TEST_P(EveryDeltaMethod, ExpertsEqualToTheBaseGiveTheBasesBits) {
  std::vector<float> base = RandomFloats(kCount, 1);
  const float odd[] = {-0.0f,    0.0f,      1e-45f, -1e-40f, std::bit_cast<float>(0x7fc01234u),
                       INFINITY, -INFINITY, 3e38f};
  std::copy(std::begin(odd), std::end(odd), base.begin() + 100);
  for (const bool busy : {false, true}) {
    const ArrayMerge merge = Make(base, std::vector<std::vector<float>>(InputCount(), base), busy);
    EXPECT_TRUE(SameBits(MergeArrays(merge), base)) << (busy ? "busy" : "plain");
  }
}

TEST_P(EveryTaskVectorMethod, AWeightOfZeroGivesTheBasesBits) {
  for (const bool busy : {false, true}) {
    ArrayMerge merge = Random(busy);
    merge.base[7] = -0.0f;
    Set(merge, "weight", 0);
    EXPECT_TRUE(SameBits(MergeArrays(merge), merge.base)) << (busy ? "busy" : "plain");
  }
}

TEST_P(EveryMethod, FiniteInFiniteOut) {
  for (const double scale : {0.0, 1e-30, 0.1, 1e6}) {
    for (const bool busy : {false, true}) {
      for (const float value : MergeArrays(Random(busy, scale)))
        ASSERT_TRUE(std::isfinite(value)) << "deltas of " << scale;
    }
  }
}

TEST_P(EveryMethod, TheSameBytesOnEveryTarget) {
  for (const ArrayMerge& merge : {Random(false), Random(true), Coarse()}) {
    const std::vector<float> scalar = MergeArrays(merge, *Must(kernels::ChooseKernels("scalar")));
    for (const std::string& target : kernels::RunnableTargets())
      EXPECT_TRUE(SameBits(MergeArrays(merge, *Must(kernels::ChooseKernels(target))), scalar)) << target;
  }
}

TEST_P(EveryMethod, TheSameBytesHoweverTheWorkIsCut) {
  const kernels::Kernels& kernels = *Must(kernels::ChooseKernels(""));
  for (const ArrayMerge& merge : {Random(false), Random(true), Coarse()}) {
    const std::vector<float> whole = MergeArrays(merge, kernels, {.items = 1, .apply_tile = kCount});
    for (const Cuts& cuts : {Cuts{2, 4096}, Cuts{3, 1000}, Cuts{7, 17}, Cuts{10, 1}})
      EXPECT_TRUE(SameBits(MergeArrays(merge, kernels, cuts), whole))
          << cuts.items << ", " << cuts.apply_tile;
  }
}

TEST_P(EveryMethod, TheSameBytesEveryTime) {
  EXPECT_TRUE(SameBits(MergeArrays(Random(true)), MergeArrays(Random(true))));
}

TEST_P(EveryDeltaMethod, ExpertsThatDifferChangeTheBase) {
  const ArrayMerge merge = Random(false);
  EXPECT_FALSE(SameBits(MergeArrays(merge), merge.base));
}

TEST_P(EveryMethod, TellsWhatItIs) {
  EXPECT_EQ(FindMethod(method().name), &method());
  EXPECT_FALSE(method().summary.empty());
  EXPECT_FALSE(method().formula.empty());
  EXPECT_LE(method().min_inputs, method().max_inputs);
  EXPECT_GE(method().min_inputs, works_on_deltas() && method().needs_base ? 1u : 0u);
  EXPECT_TRUE(method().prepare != nullptr && method().apply32 != nullptr && method().apply64 != nullptr);
  std::set<std::string> names;
  for (const ParamSpec& spec : method().params) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name << " is there twice";
    EXPECT_FALSE(spec.doc.empty()) << spec.name;
    EXPECT_FALSE(spec.required && spec.default_value) << spec.name;
  }
  for (const std::string& unused : method().unused_params)
    EXPECT_EQ(names.count(unused), 1u) << unused;
}

std::vector<const Method*> DeltaMethods() {
  std::vector<const Method*> methods;
  for (const Method* method : AllMethods()) {
    if (method->domain == Domain::kDeltas) methods.push_back(method);
  }
  return methods;
}

std::vector<const Method*> TaskVectorMethods() {
  std::vector<const Method*> methods;
  for (const Method* method : DeltaMethods()) {
    const bool weighs = std::any_of(method->params.begin(), method->params.end(),
                                    [](const ParamSpec& spec) { return spec.name == "weight"; });
    if (weighs && method->needs_base) methods.push_back(method);
  }
  return methods;
}

std::string NameOf(const testing::TestParamInfo<const Method*>& method) {
  return method.param->name;
}
INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, testing::ValuesIn(AllMethods()), NameOf);
INSTANTIATE_TEST_SUITE_P(Table, EveryDeltaMethod, testing::ValuesIn(DeltaMethods()), NameOf);
INSTANTIATE_TEST_SUITE_P(Table, EveryTaskVectorMethod, testing::ValuesIn(TaskVectorMethods()), NameOf);

TEST(MethodTable, IsSortedByName) {
  const std::vector<std::string> names = MethodNames();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(FindMethod("tise"), nullptr);
}

// Name, "!" for required, "?" for optional, else the default; "@" before what is looked up for each model.
std::map<std::string, std::string> ParamsOf(const std::string& method) {
  std::map<std::string, std::string> params;
  for (const ParamSpec& spec : FindMethod(method)->params) {
    const std::string value = spec.required              ? "!"
                              : !spec.default_value      ? "?"
                              : *spec.default_value == 0 ? "0"
                              : *spec.default_value == 1 ? "1"
                                                         : std::to_string(*spec.default_value);
    params[(spec.per_model ? "@" : "") + spec.name] = value;
  }
  return params;
}

// The table of mergekit's parameters and defaults (mergekit-spec.md, 2.5).
TEST(MethodTable, ParametersAndDefaultsAreMergekits) {
  using Params = std::map<std::string, std::string>;
  EXPECT_EQ(ParamsOf("linear"), (Params{{"@weight", "!"}, {"normalize", "1"}}));
  EXPECT_EQ(ParamsOf("slerp"), (Params{{"t", "!"}}));
  EXPECT_EQ(ParamsOf("passthrough"), (Params{{"@scale", "?"}}));
  const auto family = [](const char* normalize, const char* rescale) {
    return Params{{"@weight", "!"},     {"@density", "1"}, {"normalize", normalize},
                  {"rescale", rescale}, {"lambda", "1"},   {"int8_mask", "0"}};
  };
  EXPECT_EQ(ParamsOf("task_arithmetic"), family("0", "0"));
  EXPECT_EQ(ParamsOf("ties"), family("1", "0"));
  EXPECT_EQ(ParamsOf("dare_linear"), family("0", "1"));
  EXPECT_EQ(ParamsOf("dare_ties"), family("0", "1"));
  const auto with = [&](const char* normalize, const char* rescale, const char* name, const char* value) {
    Params params = family(normalize, rescale);
    params[name] = value;
    return params;
  };
  EXPECT_EQ(ParamsOf("breadcrumbs"), with("0", "0", "@gamma", "0.010000"));
  EXPECT_EQ(ParamsOf("breadcrumbs_ties"), with("0", "0", "@gamma", "0.010000"));
  EXPECT_EQ(ParamsOf("della"), with("1", "1", "@epsilon", "0.150000"));
  EXPECT_EQ(ParamsOf("della_linear"), with("0", "1", "@epsilon", "0.150000"));
  EXPECT_EQ(ParamsOf("nuslerp"),
            (Params{{"@weight", "!"}, {"nuslerp_flatten", "1"}, {"nuslerp_row_wise", "0"}}));
  EXPECT_EQ(ParamsOf("multislerp"),
            (Params{{"@weight", "!"}, {"normalize_weights", "1"}, {"eps", "0.000000"}}));
  EXPECT_EQ(ParamsOf("karcher"), (Params{{"max_iter", "10.000000"}, {"tol", "0.000010"}}));
  EXPECT_EQ(ParamsOf("sce"), (Params{{"select_topk", "1"}, {"int8_mask", "0"}}));
  EXPECT_EQ(ParamsOf("ram"), (Params{{"epsilon", "0.000010"}}));
  EXPECT_EQ(ParamsOf("ramplus_tl"),
            (Params{{"r", "0.100000"}, {"alpha", "0.200000"}, {"epsilon", "0.000010"}}));
  EXPECT_EQ(ParamsOf("model_stock"), (Params{{"filter_wise", "0"}}));
  EXPECT_EQ(ParamsOf("nearswap"), (Params{{"t", "!"}}));
  EXPECT_EQ(ParamsOf("arcee_fusion"), Params{});
}

TEST(MethodTable, OnlyFixedCoefficientsAreAdditive) {
  const std::set<std::string> additive = {"linear", "passthrough", "task_arithmetic"};
  for (const Method* method : AllMethods()) {
    EXPECT_EQ(method->additive, additive.count(method->name) > 0) << method->name;
    EXPECT_NE(method->coefficients, nullptr) << method->name;
  }
}

}  // namespace
}  // namespace mergepipe
