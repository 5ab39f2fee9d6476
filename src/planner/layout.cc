#include "planner/layout.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "recipe/layers.h"

namespace mergepipe {
namespace {

constexpr uint64_t kUsualShardBytes = 5'000'000'000;

// Before the layers, by layer, behind the layers; then by name.
auto NaturalKey(const ResolvedTensor& tensor) {
  const auto split = SplitLayerName(tensor.name);
  const int group = split ? 1 : StandsBeforeLayers(tensor.name) ? 0 : 2;
  return std::tuple(group, split ? split->prefix : "", split ? split->layer : 0, tensor.name);
}

TensorEntry OutputEntry(const ResolvedTensor& tensor) {
  return {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .elements = tensor.elements};
}

// Widest elements first where the given order would leave a tensor misaligned.
void AlignOrder(const ResolvedMerge& merge, std::vector<size_t>& order) {
  const auto bits = [&](size_t i) { return DTypeBits(merge.tensors[i].dtype); };
  uint64_t at = 0;
  bool aligned = true;
  for (const size_t i : order) {
    aligned = aligned && at * 8 % bits(i) == 0;
    at += merge.tensors[i].bytes();
  }
  if (!aligned)
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bits(a) > bits(b); });
}

void Finish(const ResolvedMerge& merge, std::map<std::string, std::string> metadata, Unit& unit) {
  AlignOrder(merge, unit.tensors);
  std::vector<TensorEntry> entries;
  for (const size_t i : unit.tensors)
    entries.push_back(OutputEntry(merge.tensors[i]));
  unit.layout = LayOutSafetensors(entries, std::move(metadata));
}

std::vector<Unit> KeepShards(const ResolvedMerge& merge) {
  const Checkpoint& donor = *merge.models[merge.donor].checkpoint;
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < merge.tensors.size(); ++i)
    by_name[merge.tensors[i].name] = i;
  std::vector<Unit> units;
  for (size_t s = 0; s < donor.shards().size(); ++s) {
    const Shard& shard = donor.shards()[s];
    // A file that was named alone makes a folder that every loader knows.
    Unit unit{.file_name = donor.is_single_file() ? kSingleName : shard.file_name};
    for (size_t i = 0; i < shard.header.tensors.size(); ++i) {
      const auto place = donor.tensors().find(shard.header.tensors[i].name);
      const bool here =
          place != donor.tensors().end() && place->second.shard == s && place->second.index == i;
      if (here) unit.tensors.push_back(by_name.at(place->first));
    }
    Finish(merge, shard.header.metadata, unit);
    units.push_back(std::move(unit));
  }
  return units;
}

std::vector<Unit> NewShards(const ResolvedMerge& merge) {
  std::vector<size_t> order(merge.tensors.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return NaturalKey(merge.tensors[a]) < NaturalKey(merge.tensors[b]); });
  std::vector<Unit> units(1);
  const uint64_t most = merge.form.shard_bytes.value_or(kUsualShardBytes);
  uint64_t size = 0;
  for (const size_t i : order) {
    const uint64_t bytes = merge.tensors[i].bytes();
    if (most > 0 && size > 0 && size + bytes > most) {
      units.emplace_back();
      size = 0;
    }
    units.back().tensors.push_back(i);
    size += bytes;
  }
  const auto& shards = merge.models[merge.donor].checkpoint->shards();
  for (size_t u = 0; u < units.size(); ++u) {
    units[u].file_name =
        units.size() == 1 ? kSingleName : Format("model-{:05}-of-{:05}.safetensors", u + 1, units.size());
    Finish(merge, shards.empty() ? std::map<std::string, std::string>{} : shards[0].header.metadata,
           units[u]);
  }
  return units;
}

}  // namespace

std::vector<Unit> LayOutUnits(const ResolvedMerge& merge) {
  return merge.keeps_layout ? KeepShards(merge) : NewShards(merge);
}

}  // namespace mergepipe
