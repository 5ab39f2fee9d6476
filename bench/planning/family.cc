#include "family.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/text.h"
#include "base/try.h"
#include "catalog/catalog.h"
#include "catalog/sketch.h"
#include "recipe/resolve.h"

namespace mergepipe::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlockBytes = 1u << 20;
constexpr double kUnrelated = 0.8;  // share of a delta's energy that no other expert has

struct Shape {
  std::string name;
  std::vector<uint64_t> shape;
};

std::vector<Shape> Shapes(size_t layers) {
  constexpr uint64_t kWidth = 4096, kHeads = 1024, kMlp = 14336, kWords = 128256;
  std::vector<Shape> shapes = {{"model.embed_tokens.weight", {kWords, kWidth}},
                               {"model.norm.weight", {kWidth}},
                               {"lm_head.weight", {kWords, kWidth}}};
  for (size_t layer = 0; layer < layers; ++layer) {
    const std::string at = Format("model.layers.{}.", layer);
    const std::vector<Shape> parts = {
        {"input_layernorm.weight", {kWidth}},          {"post_attention_layernorm.weight", {kWidth}},
        {"self_attn.q_proj.weight", {kWidth, kWidth}}, {"self_attn.k_proj.weight", {kHeads, kWidth}},
        {"self_attn.v_proj.weight", {kHeads, kWidth}}, {"self_attn.o_proj.weight", {kWidth, kWidth}},
        {"mlp.gate_proj.weight", {kMlp, kWidth}},      {"mlp.up_proj.weight", {kMlp, kWidth}},
        {"mlp.down_proj.weight", {kWidth, kMlp}}};
    for (const Shape& part : parts)
      shapes.push_back({at + part.name, part.shape});
  }
  return shapes;
}

Result<void> WriteHollow(const std::string& folder, const std::vector<Shape>& shapes) {
  std::vector<TensorEntry> entries;
  for (const Shape& s : shapes) {
    uint64_t elements = 1;
    for (const uint64_t extent : s.shape)
      elements *= extent;
    entries.push_back(
        {.name = s.name, .dtype = DType::kBF16, .shape = s.shape, .elements = elements, .end = 2 * elements});
  }
  const SafetensorsLayout layout = LayOutSafetensors(entries, {});
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string path = folder + "/model.safetensors";
  std::ofstream(path, std::ios::binary) << layout.prefix;
  fs::resize_file(path, layout.file_size, error);
  if (error) return Fail(Code::kIo, Format("{}: {}", path, error.message()));
  return {};
}

// Statistics of all blocks of one tensor. The experts share a direction, some more of it than others.
class Statistics {
 public:
  Statistics(const TensorEntry& entry, uint64_t seed)
      : entry_(entry), blocks_((entry.bytes() + kBlockBytes - 1) / kBlockBytes), random_(seed) {
    for (size_t i = 0; i < blocks_ * kSketchBuckets; ++i)
      common_.push_back(normal_(random_));
  }

  BaseColumns OfBase() {
    BaseColumns columns;
    for (size_t b = 0; b < blocks_; ++b) {
      columns.energy.push_back(200 + 10 * normal_(random_));
      columns.digest.push_back({random_(), random_()});
    }
    return columns;
  }

  TensorKnowledge OfExpert(uint64_t kept) {
    TensorKnowledge knowledge;
    BlockColumns& c = knowledge.blocks;
    c.block_elements = kBlockBytes / 2;
    c.elements = entry_.elements;
    const double agreement = std::sqrt(1 - kUnrelated) * normal_(random_);
    for (size_t b = 0; b < blocks_; ++b)
      AddBlock(b, agreement, c);
    knowledge.l1 = 1e-3 * static_cast<double>(entry_.elements);
    knowledge.histogram = Histogram();
    const uint32_t key = std::bit_cast<uint32_t>(1.2e-3f);
    knowledge.thresholds = {{.kept = kept,
                             .threshold = {.key = key, .equal_total = 1, .equal_kept = 1, .cut_index = kept},
                             .l1_whole = knowledge.l1,
                             .l1_kept = knowledge.l1 / 2}};
    return knowledge;
  }

  Digest128 Digest() { return {random_(), random_()}; }

 private:
  void AddBlock(size_t block, double agreement, BlockColumns& c) {
    const double scale = std::exp(normal_(random_));
    double sums[kSketchBuckets];
    double energy = 0;
    for (size_t k = 0; k < kSketchBuckets; ++k) {
      sums[k] = scale *
                (std::sqrt(kUnrelated) * normal_(random_) + agreement * common_[block * kSketchBuckets + k]);
      energy += sums[k] * sums[k];
    }
    const QuantisedSketch sketch = Quantise(sums);
    c.energy.push_back(energy);
    c.max_key.push_back(std::bit_cast<uint32_t>(static_cast<float>(1e-2 * scale)));
    c.nonzeros.push_back(static_cast<uint32_t>(c.block_elements / 2));
    for (size_t j = 0; j < kOctaves; ++j)
      c.octaves.push_back(static_cast<uint32_t>(c.block_elements >> (kOctaves - j)));
    c.sketch_scale.push_back(sketch.scale);
    c.sketch.insert(c.sketch.end(), std::begin(sketch.values), std::end(sketch.values));
    c.digest.push_back(Digest());
  }

  // Ten octaves of magnitudes with the resolution that the catalog has.
  std::vector<std::pair<uint32_t, uint64_t>> Histogram() const {
    constexpr uint32_t kFirst = 0x3880'0000 >> kernels::kLowBits, kBuckets = 2560;
    std::vector<std::pair<uint32_t, uint64_t>> histogram = {{kFirst, entry_.elements}};
    for (uint32_t i = 1; i < kBuckets && entry_.elements > 32 * kBuckets; ++i) {
      histogram.emplace_back(kFirst + i, entry_.elements / kBuckets / 2 + i % 7);
      histogram[0].second -= histogram.back().second;
    }
    return histogram;
  }

  const TensorEntry& entry_;
  size_t blocks_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> common_;
};

// Fills the catalog by the calls that an analysis makes.
class CatalogWriter {
 public:
  CatalogWriter(Catalog& catalog, const ResolvedMerge& merge) : catalog_(catalog), merge_(merge) {}

  Result<void> Fill() {
    for (const ResolvedModel& model : merge_.models) {
      stamps_.push_back(StampKey(*model.checkpoint));
      MP_TRY(catalog_.Begin(*model.checkpoint));
    }
    for (size_t t = 0; t < merge_.tensors.size(); ++t)
      MP_TRY(FillTensor(t));
    for (const ResolvedModel& model : merge_.models)
      MP_TRY(catalog_.Finish(*model.checkpoint, *merge_.models[0].checkpoint, kBlockBytes));
    return {};
  }

 private:
  Result<void> FillTensor(size_t t) {
    const ResolvedTensor& tensor = merge_.tensors[t];
    Statistics statistics(EntryOf(merge_, tensor.sources[0]), t + 1);
    std::vector<Finding> findings;
    for (size_t s = 0; s < tensor.sources.size(); ++s) {
      Finding finding{.checkpoint = stamps_[tensor.sources[s].model],
                      .base = s == 0 ? "" : stamps_[0],
                      .name = tensor.name,
                      .content = {tensor.dtype, tensor.shape, statistics.Digest()},
                      .block_bytes = kBlockBytes,
                      .has_columns = true,
                      .base_columns = {},
                      .knowledge = {}};
      if (s == 0) finding.base_columns = statistics.OfBase();
      if (s > 0) finding.knowledge = statistics.OfExpert(tensor.request.keep[0].count);
      findings.push_back(std::move(finding));
    }
    return catalog_.Store(findings);
  }

  Catalog& catalog_;
  const ResolvedMerge& merge_;
  std::vector<std::string> stamps_;
};

}  // namespace

std::string BasePath(const std::string& folder) {
  return folder + "/base";
}

std::string ExpertPath(const std::string& folder, size_t expert) {
  return Format("{}/expert-{:03}", folder, expert);
}

std::string CatalogFilePath(const std::string& folder) {
  return folder + "/catalog.db";
}

Result<void> MakeFamily(const std::string& folder, const FamilySize& size) {
  const std::vector<Shape> shapes = Shapes(size.layers);
  RecipeFlags flags{
      .base = BasePath(folder), .method = "ties", .experts = {}, .settings = {kWeight, kDensity}};
  MP_TRY(WriteHollow(flags.base, shapes));
  for (size_t i = 0; i < size.experts; ++i) {
    flags.experts.push_back(ExpertPath(folder, i));
    MP_TRY(WriteHollow(flags.experts.back(), shapes));
  }
  Ledger ledger;
  const std::string text = MP_TRY(RecipeFromFlags(flags));
  const Recipe recipe = MP_TRY(ParseRecipe(text, "benchmark"));
  const ResolvedMerge merge = MP_TRY(ResolveRecipe(recipe, {}, ledger));
  const auto catalog = MP_TRY(Catalog::OpenForWriting(CatalogFilePath(folder)));
  return CatalogWriter(*catalog, merge).Fill();
}

}  // namespace mergepipe::bench
