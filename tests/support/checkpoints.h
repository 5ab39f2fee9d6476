#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace mergepipe::tests {

/// A tensor as it is stored.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  std::string bytes;
};

/// A tensor of these values, each rounded once to the stored type.
StoredTensor TensorOf(const std::string& name, DType dtype, std::vector<uint64_t> shape,
                      const std::vector<double>& values);

/// A tensor of normally distributed values.
StoredTensor RandomTensor(const std::string& name, DType dtype, std::vector<uint64_t> shape, uint32_t seed,
                          double scale = 1);

/// The tensor plus a normally distributed delta, in the given type.
StoredTensor Finetuned(const StoredTensor& base, DType dtype, uint32_t seed, double scale);

/// The values that a reader of a stored tensor (F16, BF16, F32, F64) sees.
std::vector<double> ValuesOf(const StoredTensor& tensor);

/// Elements of a shape.
uint64_t CountOf(const std::vector<uint64_t>& shape);

/// A file with this header text and data: the length goes before, nothing is checked.
std::string RawSafetensors(const std::string& header, const std::string& data);

/// A sound file, written by hand and not by the code under test.
std::string SafetensorsOf(const std::vector<StoredTensor>& tensors,
                          const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// A folder with model.safetensors and, where `config` is not empty, config.json.
void WriteCheckpoint(const std::string& folder, const std::vector<StoredTensor>& tensors,
                     const std::string& config = "");

/// A folder with numbered shards and their index.
void WriteSharded(const std::string& folder, const std::vector<std::vector<StoredTensor>>& shards,
                  const std::string& config = "");

/// "model-00001-of-00003.safetensors"; `shard` counts from 0.
std::string ShardName(size_t shard, size_t shards);

/// The text of an index from (tensor, file) pairs.
std::string IndexText(const std::vector<std::pair<std::string, std::string>>& weight_map);

/// A file whose header promises these tensors and whose data is a hole: sizes without bytes.
void WriteHollowCheckpoint(const std::string& folder, const std::vector<StoredTensor>& tensors);

/// The tensors of a checkpoint folder, by name.
std::map<std::string, StoredTensor> ReadCheckpoint(const std::string& folder);

}  // namespace mergepipe::tests
