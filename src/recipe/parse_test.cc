#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "recipe/recipe.h"
#include "support/outcome.h"

namespace mergepipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using tests::Must;
using tests::Succeeds;

// What is said of a recipe: faults that stop the parse, and those told along with what resolving finds.
std::string FaultsOf(const std::string& text) {
  const auto recipe = ParseRecipe(text, "r.yml");
  return recipe ? Join(recipe->faults, "\n") : tests::Told(recipe.error());
}

Code CodeOf(const std::string& text) {
  const auto recipe = ParseRecipe(text, "r.yml");
  return recipe ? Code::kInternal : recipe.error().code;
}

Recipe Parse(const std::string& text) {
  Recipe recipe = Must(ParseRecipe(text, "r.yml"));
  EXPECT_THAT(recipe.faults, IsEmpty());
  return recipe;
}

// --- what is read

TEST(ParseRecipe, ReadsModelsAndTheirParameters) {
  const Recipe recipe = Parse(R"(
merge_method: ties
base_model: org/base
dtype: bfloat16
out_dtype: float32
parameters:
  normalize: false
models:
  - model: a
    parameters: {weight: 0.5, density: [0.2, 1]}
  - model: b
)");
  EXPECT_EQ(recipe.where, "r.yml");
  EXPECT_EQ(recipe.merge_method, "ties");
  EXPECT_EQ(recipe.base_model->path, "org/base");
  EXPECT_EQ(recipe.dtype, "bfloat16");
  EXPECT_EQ(recipe.out_dtype, "float32");
  EXPECT_THAT(recipe.parameters.at("normalize").entries[0].value.anchors, ElementsAre("false"));
  ASSERT_EQ(recipe.models.size(), 2u);
  EXPECT_EQ(recipe.models[0].model.path, "a");
  EXPECT_THAT(recipe.models[0].parameters.at("density").entries[0].value.anchors, ElementsAre("0.2", "1"));
  EXPECT_TRUE(recipe.models[0].parameters.at("density").entries[0].value.is_list);
  EXPECT_FALSE(recipe.models[0].parameters.at("weight").entries[0].value.is_list);
  EXPECT_THAT(recipe.models[1].parameters, IsEmpty());
}

TEST(ParseRecipe, ReadsSlices) {
  const Recipe recipe = Parse(R"(
merge_method: slerp
slices:
  - sources:
      - {model: a, layer_range: [0, 8]}
      - {model: b, layer_range: [4, 12], parameters: {weight: 1}}
    base_model: a
    parameters: {t: 0.5}
)");
  ASSERT_EQ(recipe.slices.size(), 1u);
  EXPECT_EQ(recipe.slices[0].base_model->path, "a");
  EXPECT_EQ(recipe.slices[0].parameters.count("t"), 1u);
  ASSERT_EQ(recipe.slices[0].sources.size(), 2u);
  EXPECT_EQ(recipe.slices[0].sources[1].layer_range, (std::pair<int64_t, int64_t>(4, 12)));
  EXPECT_EQ(recipe.slices[0].sources[1].parameters.count("weight"), 1u);
}

TEST(ParseRecipe, ReadsModulesInTheirOrder) {
  const Recipe recipe = Parse(R"(
merge_method: passthrough
modules:
  text: {slices: [{sources: [{model: a, layer_range: [0, 1]}]}]}
  audio: {models: [{model: b}], parameters: {scale: 2}}
)");
  ASSERT_EQ(recipe.modules.size(), 2u);
  EXPECT_EQ(recipe.modules[0].first, "text");
  EXPECT_EQ(recipe.modules[0].second.slices.size(), 1u);
  EXPECT_EQ(recipe.modules[1].first, "audio");
  EXPECT_EQ(recipe.modules[1].second.parameters.count("scale"), 1u);
}

const Setting& WeightOf(const Recipe& recipe) {
  return recipe.parameters.at("weight");
}

TEST(ParseRecipe, ReadsFiltersInTheirOrder) {
  const Recipe recipe = Parse(R"(
merge_method: linear
models: [{model: a}]
parameters:
  weight:
    - filter: mlp
      value: [0, 1]
    - {filter: "*", value: 2}
    - {filter: null, value: 3}
    - value: 0.5
)");
  const auto& entries = WeightOf(recipe).entries;
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].filter, "mlp");
  EXPECT_THAT(entries[0].value.anchors, ElementsAre("0", "1"));
  for (size_t i = 1; i < 4; ++i)
    EXPECT_FALSE(entries[i].filter.has_value()) << i;
  EXPECT_EQ(entries[3].at.line, 10);
}

TEST(ParseRecipe, AFilterMayStandOutsideAList) {
  const Recipe recipe =
      Parse("merge_method: linear\nmodels: [{model: a}]\nparameters: {weight: {filter: mlp, value: 1}}\n");
  ASSERT_EQ(WeightOf(recipe).entries.size(), 1u);
  EXPECT_EQ(WeightOf(recipe).entries[0].filter, "mlp");
}

TEST(ParseRecipe, AnEmptyListIsNoValue) {
  const Recipe recipe = Parse("merge_method: linear\nmodels: [{model: a}]\nparameters: {weight: []}\n");
  EXPECT_THAT(WeightOf(recipe).entries[0].value.anchors, IsEmpty());
}

TEST(ParseRecipe, AnEmptyFormCountsAsAbsent) {
  EXPECT_THAT(FaultsOf("merge_method: linear\nmodels: [{model: a}]\nslices: []\nmodules: {}\n"), "");
}

TEST(ParseRecipe, KeepsTheTextVerbatim) {
  const std::string text = "# why\nmerge_method:   linear\nmodels: [{model: a}]";
  EXPECT_EQ(Parse(text).text, text);
}

// --- references

TEST(ModelRef, IsAPathWithARevisionAndAnAdapter) {
  const auto ref = [](const std::string& text) {
    return Parse(Format("merge_method: linear\nmodels: [{{model: {}}}]\n", text)).models[0].model;
  };
  EXPECT_EQ(ref("org/name").path, "org/name");
  EXPECT_EQ(ref("org/name@v2").revision, "v2");
  EXPECT_EQ(ref("org/name@v2+lora").lora, "lora");
  EXPECT_EQ(ref("base+lora@r").lora, "lora@r");
  for (const char* text : {"a", "a@b", "a+c", "a@b+c", "a@b+c@d"})
    EXPECT_EQ(ref(text).Text(), text);
}

TEST(ModelRef, TheMappingFormTakesPathsThatHoldSigns) {
  const Recipe recipe = Parse(R"(
merge_method: linear
models:
  - model: {model: {path: "a+b@c", revision: r}}
  - model: {model: plain, lora: {path: l, revision: s}, override_architecture: X}
)");
  EXPECT_EQ(recipe.models[0].model.path, "a+b@c");
  EXPECT_EQ(recipe.models[0].model.revision, "r");
  EXPECT_EQ(recipe.models[1].model.lora, "l@s");
}

TEST(ModelRef, MoreSignsThanAReferenceHasAreRefused) {
  for (const char* text : {"a+b+c", "a@b@c"})
    EXPECT_THAT(FaultsOf(Format("merge_method: linear\nmodels:\n  - model: {}\n", text)),
                HasSubstr(Format("r.yml:3:12: '{}' is no model reference", text)));
}

// --- faults, each with its place

struct Case {
  const char* text;
  const char* fault;
};

void ExpectFaults(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    EXPECT_THAT(FaultsOf(c.text), HasSubstr(c.fault)) << c.text;
    const Code code = CodeOf(c.text);
    EXPECT_TRUE(code == Code::kUsage || code == Code::kInternal) << c.text;
  }
}

TEST(RecipeFault, OfWhatIsNoRecipe) {
  ExpectFaults({{"", "r.yml: the recipe is empty"},
                {"# only a comment\n", "the recipe is empty"},
                {"~", "the recipe is empty"},
                {"- a\n- b\n", "a recipe is a mapping"},
                {"just text", "a recipe is a mapping"},
                {"a: [1, 2\nb: 3\n", "is not valid YAML"},
                {"a: 1\n\tb: 2\n", "is not valid YAML"},
                {"a: *nowhere\n", "is not valid YAML"},
                {"? [a, b]\n: c\n", "a key is not plain text"}});
}

TEST(RecipeFault, OfSeveralRecipesInOneFileIsUnsupported) {
  EXPECT_THAT(FaultsOf("a: b\n---\nc: d\n"), HasSubstr("holds 2 YAML documents"));
  EXPECT_EQ(CodeOf("a: b\n---\nc: d\n"), Code::kUnsupported);
}

TEST(RecipeFault, OfInvalidYamlNamesItsPlace) {
  EXPECT_THAT(FaultsOf("merge_method: linear\nmodels: [{model: a}\ndtype: x\n"), HasSubstr("r.yml:3:"));
}

TEST(RecipeFault, OfUnknownKeysNamesPlaceAndNearestKey) {
  ExpectFaults({
      {"merge_metod: linear\nmodels: [{model: a}]\n",
       "r.yml:1:1: unknown key 'merge_metod' (did you mean 'merge_method'?)"},
      {"merge_method: linear\nmodels:\n  - modle: a\n    model: a\n",
       "r.yml:3:5: unknown key 'modle' in 'models' (did you mean 'model'?)"},
      {"merge_method: linear\nslices:\n  - source: []\n    sources: [{model: a, layer_range: [0, 1]}]\n",
       "r.yml:3:5: unknown key 'source' in a slice (did you mean 'sources'?)"},
      {"merge_method: linear\nmodels:\n  - {model: a, layer_range: [0, 1]}\n",
       "unknown key 'layer_range' in 'models'"},
      {"merge_method: linear\nmodules:\n  x: {model: [], models: [{model: a}]}\n",
       "unknown key 'model' in module 'x' (did you mean 'models'?)"},
      {"merge_method: linear\nmodels: [{model: {model: a, Lora: b}}]\n",
       "unknown key 'Lora' in a model reference (did you mean 'lora'?)"},
      {"merge_method: linear\nmodels: [{model: a}]\nparameters:\n  weight:\n    - {filtr: mlp, value: 1}\n",
       "r.yml:5:8: unknown key 'filtr' in a conditional entry of 'weight' (did you mean 'filter'?)"},
      {"merge_method: linear\nmodels: [{model: a}]\ninput_model_parameters: {}\n",
       "unknown key 'input_model_parameters'"},
  });
}

TEST(RecipeFault, OfRepeatedKeys) {
  ExpectFaults({{"merge_method: linear\nmerge_method: ties\nmodels: [{model: a}]\n",
                 "r.yml:2:1: the key 'merge_method' stands here twice"},
                {"merge_method: linear\nmodels: [{model: a, parameters: {weight: 1, weight: 2}}]\n",
                 "the key 'weight' stands here twice"}});
}

TEST(RecipeFault, OfMissingParts) {
  ExpectFaults(
      {{"models: [{model: a}]\n", "'merge_method' is missing"},
       {"merge_method: linear\n",
        "exactly one of 'models', 'slices' and 'modules' must be given and not empty; 0 are"},
       {"merge_method: linear\nmodels: [{model: a}]\nmodules: {x: {models: [{model: a}]}}\n",
        "not empty; 2 are"},
       {"merge_method: linear\nmodels:\n  - parameters: {weight: 1}\n",
        "r.yml:3:5: an entry of 'models' has no 'model'"},
       {"merge_method: linear\nslices: [{parameters: {}}]\n", "a slice has no 'sources'"},
       {"merge_method: linear\nslices: [{sources: []}]\n", "a slice has no 'sources'"},
       {"merge_method: linear\nslices: [{sources: [{model: a}]}]\n", "a source has no 'layer_range'"},
       {"merge_method: linear\nmodules: {x: {}}\n", "module 'x' needs exactly one of 'models' and 'slices'"},
       {"merge_method: linear\nmodels: [{model: {lora: b}}]\n", "a model reference has no 'model'"},
       {"merge_method: linear\nmodels: [{model: ''}]\n", "a model has an empty path"}});
}

TEST(RecipeFault, OfTheWrongKindOfValue) {
  ExpectFaults(
      {{"merge_method: [linear]\nmodels: [{model: a}]\n", "'merge_method' must be a text"},
       {"merge_method: linear\nmodels: {model: a}\n", "'models' must be a list"},
       {"merge_method: linear\nmodels: [a]\n", "an entry of 'models' must be a mapping"},
       {"merge_method: linear\nmodels: [{model: [a]}]\n", "a model is a text"},
       {"merge_method: linear\nslices: [x]\n", "a slice must be a mapping"},
       {"merge_method: linear\nmodules: [x]\n", "'modules' must be a mapping"},
       {"merge_method: linear\nmodels: [{model: a, parameters: [1]}]\n", "'parameters' must be a mapping"},
       {"merge_method: linear\nmodels: [{model: a}]\nparameters: {weight: null}\n", "'weight' has no value"},
       {"merge_method: linear\nmodels: [{model: a}]\nparameters: {weight: [1, [2]]}\n",
        "'weight' mixes values"},
       {"merge_method: linear\nmodels: [{model: a}]\nparameters: {weight: [{value: 1}, 2]}\n",
        "an entry of the conditional list 'weight' must be a mapping"},
       {"merge_method: linear\nmodels: [{model: a}]\nparameters: {weight: [{filter: x}]}\n",
        "a conditional entry of 'weight' has no 'value'"},
       {"merge_method: linear\nmodels: [{model: a}]\ndtype: {a: b}\n", "'dtype' must be a text"}});
}

TEST(RecipeFault, OfLayerRanges) {
  const auto with = [](const std::string& range) {
    return "merge_method: linear\nslices: [{sources: [{model: a, layer_range: " + range + "}]}]\n";
  };
  for (const char* range : {"5", "[1]", "[0, 1, 2]", "[a, b]", "[-1, 2]", "[0, 1.5]", "[[0], 1]", "{a: b}"})
    EXPECT_THAT(FaultsOf(with(range)), HasSubstr("'layer_range' is a list of two whole numbers")) << range;
  for (const char* range : {"[2, 2]", "[3, 1]"})
    EXPECT_THAT(FaultsOf(with(range)), HasSubstr("selects no layer")) << range;
  EXPECT_THAT(FaultsOf(with("[0, 1]")), "");
}

TEST(Recipe, TakesBothFormsOfATokenizer) {
  const std::string head = "merge_method: linear\nmodels: [{model: a}]\n";
  EXPECT_FALSE(Must(ParseRecipe(head, "r")).tokenizer.has_value());
  EXPECT_EQ(Must(ParseRecipe(head + "tokenizer: {}\n", "r")).tokenizer->source,
            TokenizerSpec::Source::kUnion);
  EXPECT_EQ(Must(ParseRecipe(head + "tokenizer_source: base\n", "r")).tokenizer->source,
            TokenizerSpec::Source::kBase);
  EXPECT_EQ(Must(ParseRecipe(head + "tokenizer_source: x/y\n", "r")).tokenizer->model.path, "x/y");
  const Recipe recipe = Must(ParseRecipe(head + R"(tokenizer:
  source: b
  pad_to_multiple_of: 8
  tokens:
    one: {source: m, force: yes}
    two: {source: {kind: model_token, model: m, token_id: 3}}
    three: {source: {kind: model_token, model: {model: {path: m}}, token: t}}
    four: {source: {kind: zero}}
    five: {source: null}
)",
                                         "r"));
  const auto& tokens = recipe.tokenizer->tokens;
  ASSERT_EQ(tokens.size(), 5u);
  EXPECT_EQ(recipe.tokenizer->pad_to_multiple_of, 8u);
  EXPECT_TRUE(tokens[0].force && tokens[0].kind == TokenSpec::Kind::kModel);
  EXPECT_EQ(tokens[1].of_id, 3u);
  EXPECT_EQ(tokens[2].of_token, "t");
  EXPECT_EQ(tokens[2].model.path, "m");
  EXPECT_EQ(tokens[3].kind, TokenSpec::Kind::kZero);
  EXPECT_EQ(tokens[4].kind, TokenSpec::Kind::kDefault);
}

TEST(RecipeFault, OfTokenizersIsTold) {
  const std::pair<const char*, const char*> cases[] = {
      {"{sorce: base}", "did you mean 'source'"},
      {"{tokens: [a]}", "'tokens' must be a mapping"},
      {"{tokens: {a: {forced: true}}}", "did you mean 'force'"},
      {"{tokens: {a: {force: perhaps}}}", "'force' is true or false, not 'perhaps'"},
      {"{tokens: {a: {source: {kind: zeroo}}}}", "did you mean 'zero'"},
      {"{tokens: {a: {source: {kind: model_token, model: m}}}}", "exactly one of 'token' and 'token_id'"},
      {"{tokens: {a: {source: {kind: model_token, model: m, token: a, token_id: 1}}}}", "exactly one of"},
      {"{tokens: {a: {source: {kind: model_token, token: a}}}}", "has no 'model'"},
      {"{tokens: {a: {source: {token_id: 1}}}}", "has no 'kind'"},
      {"{tokens: {a: {source: {kind: model_token, model: m, token_id: -1}}}}",
       "'token_id' is a whole number"},
      {"{pad_to_multiple_of: 0}", "'pad_to_multiple_of' is a whole number from 1"},
      {"{pad_to_multiple_of: 1.5}", "'pad_to_multiple_of' is a whole number from 1"},
      {"{source: a+b+c}", "no model reference"},
      {"[union]", "'tokenizer' must be a mapping"},
  };
  for (const auto& [text, what] : cases)
    EXPECT_THAT(FaultsOf(Format("merge_method: linear\nmodels: [{{model: a}}]\ntokenizer: {}\n", text)),
                HasSubstr(what))
        << text;
}

TEST(RecipeFault, AllAreToldAtOnce) {
  const std::string faults = FaultsOf(R"(merge_methd: linear
base_modle: x
models:
  - modell: a
parameters: {weight: null}
)");
  for (const char* part :
       {"'merge_methd'", "'base_modle'", "'modell'", "'weight' has no value", "no 'model'"})
    EXPECT_THAT(faults, HasSubstr(part));
}

TEST(RecipeFault, OfARecipeThatIsTooLarge) {
  EXPECT_THAT(FaultsOf("a: &a [*a, *a]\n"), HasSubstr("too large or too deeply nested"));
  std::string laughs = "a: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i)
    laughs += Format("b{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  EXPECT_THAT(FaultsOf(laughs), HasSubstr("too large or too deeply nested"));
  EXPECT_NE(FaultsOf(std::string(100'000, '[')), "");
}

TEST(RecipeFault, NoDamageToARecipeThrows) {
  const std::string sound = Parse(R"(
merge_method: ties
base_model: base
models:
  - model: {model: {path: a}, lora: null}
    parameters: {weight: [0, 1], density: [{filter: mlp, value: 0.5}, {value: 1}]}
slices: []
tokenizer: {source: base}
)")
                                .text;
  std::mt19937 random(31);
  size_t refused = 0;
  for (int round = 0; round < 1'500; ++round) {
    std::string text = sound;
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const char* alphabet = "[]{}:-&*!|>'\"#%@`? \n\tab01~<";
      text[random() % text.size()] = alphabet[random() % 28];
    }
    refused += FaultsOf(text).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 250u);
}

// --- the form without YAML

Recipe FromFlags(const RecipeFlags& flags) {
  return Parse(Must(RecipeFromFlags(flags)));
}

TEST(RecipeFromFlags, SaysWhatTheFlagsSay) {
  const Recipe recipe = FromFlags({.base = "b",
                                   .method = "ties",
                                   .experts = {"x:0.5", "y", "z:-1e-2"},
                                   .settings = {"density=[0.2, 0.8]", "normalize=false"}});
  EXPECT_EQ(recipe.merge_method, "ties");
  EXPECT_EQ(recipe.base_model->path, "b");
  ASSERT_EQ(recipe.models.size(), 3u);
  EXPECT_THAT(recipe.models[0].parameters.at("weight").entries[0].value.anchors, ElementsAre("0.5"));
  EXPECT_THAT(recipe.models[1].parameters, IsEmpty());
  EXPECT_THAT(recipe.models[2].parameters.at("weight").entries[0].value.anchors, ElementsAre("-1e-2"));
  EXPECT_THAT(recipe.parameters.at("density").entries[0].value.anchors, ElementsAre("0.2", "0.8"));
  EXPECT_THAT(recipe.parameters.at("normalize").entries[0].value.anchors, ElementsAre("false"));
}

TEST(RecipeFromFlags, OnlyANumberAfterTheLastColonIsAWeight) {
  const Recipe recipe = FromFlags(
      {.base = "b", .method = "ties", .experts = {"C:/models/a", "dir:v2:0.3", "a:", "a:0.5x", "0.5"}});
  EXPECT_EQ(recipe.models[0].model.path, "C:/models/a");
  EXPECT_EQ(recipe.models[1].model.path, "dir:v2");
  EXPECT_EQ(recipe.models[2].model.path, "a:");
  EXPECT_EQ(recipe.models[3].model.path, "a:0.5x");
  EXPECT_EQ(recipe.models[4].model.path, "0.5");
}

TEST(RecipeFromFlags, PathsSurviveWhateverYamlMakesOfThem) {
  for (const char* path :
       {"yes",   "null",   "~",     "1e5",  "- a", "a: b", "#x", "'",  "\"", "{x}", "[x]",
        " lead", "trail ", "größe", "a\\b", "*x",  "&x",   "!x", "%x", "|",  ">",   "a # b"})
    EXPECT_EQ(FromFlags({.base = path, .method = "linear", .experts = {"x"}}).base_model->path, path);
}

TEST(RecipeFromFlags, RefusesWhatMeansNothing) {
  const auto refused = [](const RecipeFlags& flags) { return tests::Told(RecipeFromFlags(flags).error()); };
  EXPECT_THAT(refused({.base = "b", .method = "slerp", .experts = {"x:0.5"}}), HasSubstr("has no weights"));
  for (const char* setting : {"density", "=5", ""})
    EXPECT_THAT(refused({.base = "b", .method = "ties", .experts = {"x"}, .settings = {setting}}),
                HasSubstr("write key=value"));
  EXPECT_THAT(refused({.base = "b", .method = "ties", .experts = {"x"}, .settings = {"a=[1"}}),
              HasSubstr("not valid YAML"));
}

}  // namespace
}  // namespace mergepipe
