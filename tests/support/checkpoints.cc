#include "support/checkpoints.h"

#include <cstring>
#include <random>

#include "base/text.h"
#include "format/checkpoint.h"
#include "kernels/kernels.h"
#include "support/files.h"
#include "support/outcome.h"

namespace mergepipe::tests {
namespace {

const kernels::Loops<double>& Loops() {
  static const kernels::Kernels* scalar = Must(kernels::ChooseKernels("scalar"));
  return scalar->f64;
}

uint64_t BytesOf(const StoredTensor& tensor) {
  return CountOf(tensor.shape) * DTypeBits(tensor.dtype) / 8;
}

std::string HeaderOf(const std::vector<StoredTensor>& tensors,
                     const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata)
      pairs.push_back(Format(R"("{}":"{}")", key, value));
    entries.push_back(Format(R"("__metadata__":{{{}}})", Join(pairs, ",")));
  }
  uint64_t at = 0;
  for (const StoredTensor& tensor : tensors) {
    const uint64_t end = at + BytesOf(tensor);
    entries.push_back(Format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", tensor.name,
                             DTypeName(tensor.dtype), ShapeText(tensor.shape), at, end));
    at = end;
  }
  std::string header = "{" + Join(entries, ",") + "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

}  // namespace

uint64_t CountOf(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t dimension : shape)
    count *= dimension;
  return count;
}

StoredTensor TensorOf(const std::string& name, DType dtype, std::vector<uint64_t> shape,
                      const std::vector<double>& values) {
  StoredTensor tensor{name, dtype, std::move(shape), ""};
  tensor.bytes.resize(values.size() * DTypeBytes(dtype));
  Loops().narrow(dtype, values.data(), tensor.bytes.data(), values.size());
  return tensor;
}

StoredTensor RandomTensor(const std::string& name, DType dtype, std::vector<uint64_t> shape, uint32_t seed,
                          double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values(CountOf(shape));
  for (double& value : values)
    value = normal(random);
  return TensorOf(name, dtype, std::move(shape), values);
}

StoredTensor Finetuned(const StoredTensor& base, DType dtype, uint32_t seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values = ValuesOf(base);
  for (double& value : values)
    value += normal(random);
  return TensorOf(base.name, dtype, base.shape, values);
}

std::vector<double> ValuesOf(const StoredTensor& tensor) {
  std::vector<double> values(tensor.bytes.size() / DTypeBytes(tensor.dtype));
  Loops().widen(tensor.dtype, tensor.bytes.data(), values.data(), values.size());
  return values;
}

std::string RawSafetensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data;
}

std::string SafetensorsOf(const std::vector<StoredTensor>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  std::string data;
  for (const StoredTensor& tensor : tensors)
    data += tensor.bytes;
  return RawSafetensors(HeaderOf(tensors, metadata), data);
}

void WriteCheckpoint(const std::string& folder, const std::vector<StoredTensor>& tensors,
                     const std::string& config) {
  WriteFile(folder + "/model.safetensors", SafetensorsOf(tensors));
  if (!config.empty()) WriteFile(folder + "/config.json", config);
}

void WriteSharded(const std::string& folder, const std::vector<std::vector<StoredTensor>>& shards,
                  const std::string& config) {
  std::vector<std::pair<std::string, std::string>> weight_map;
  for (size_t s = 0; s < shards.size(); ++s) {
    WriteFile(folder + "/" + ShardName(s, shards.size()), SafetensorsOf(shards[s]));
    for (const StoredTensor& tensor : shards[s])
      weight_map.emplace_back(tensor.name, ShardName(s, shards.size()));
  }
  WriteFile(folder + "/model.safetensors.index.json", IndexText(weight_map));
  if (!config.empty()) WriteFile(folder + "/config.json", config);
}

std::string ShardName(size_t shard, size_t shards) {
  return Format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

std::string IndexText(const std::vector<std::pair<std::string, std::string>>& weight_map) {
  std::vector<std::string> pairs;
  for (const auto& [tensor, file] : weight_map)
    pairs.push_back(Format(R"("{}": "{}")", tensor, file));
  return Format(R"({{"metadata": {{}}, "weight_map": {{{}}}}})", Join(pairs, ", "));
}

void WriteHollowCheckpoint(const std::string& folder, const std::vector<StoredTensor>& tensors) {
  const std::string start = RawSafetensors(HeaderOf(tensors, {{"format", "pt"}}), "");
  uint64_t size = start.size();
  for (const StoredTensor& tensor : tensors)
    size += BytesOf(tensor);
  WriteSparseFile(folder + "/model.safetensors", start, size);
}

std::map<std::string, StoredTensor> ReadCheckpoint(const std::string& folder) {
  Ledger ledger;
  const auto checkpoint = Must(Checkpoint::Open(folder, folder, ledger));
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, place] : checkpoint->tensors()) {
    const Shard& shard = checkpoint->shards()[place.shard];
    const TensorEntry& entry = checkpoint->entry(place);
    const std::string file = ReadFile(folder + "/" + shard.file_name);
    tensors[name] = {name, entry.dtype, entry.shape,
                     file.substr(shard.header.data_start + entry.begin, entry.bytes())};
  }
  return tensors;
}

}  // namespace mergepipe::tests
