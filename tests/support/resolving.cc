#include "support/resolving.h"

#include <algorithm>
#include <stdexcept>

#include "base/text.h"
#include "support/merges.h"
#include "support/outcome.h"

namespace mergepipe::tests {

StoredTensor Zeros(const std::string& name, std::vector<uint64_t> shape, DType dtype) {
  StoredTensor tensor{name, dtype, std::move(shape), ""};
  tensor.bytes.resize(CountOf(tensor.shape) * DTypeBits(dtype) / 8);
  return tensor;
}

std::vector<StoredTensor> LayerStack(int layers, const std::vector<std::string>& parts) {
  std::vector<StoredTensor> tensors = {Zeros("model.embed_tokens.weight")};
  for (int layer = 0; layer < layers; ++layer) {
    for (const std::string& part : parts)
      tensors.push_back(Zeros(Format("model.layers.{}.{}", layer, part)));
  }
  tensors.push_back(Zeros("model.norm.weight"));
  tensors.push_back(Zeros("lm_head.weight"));
  return tensors;
}

ResolvedMerge ResolvingTest::Resolve(const std::string& recipe, const ResolveOptions& options) {
  return Must(tests::Resolve(folder_.path(), recipe, ledger_, options));
}

Error ResolvingTest::Refused(const std::string& recipe, const ResolveOptions& options) {
  auto merge = tests::Resolve(folder_.path(), recipe, ledger_, options);
  if (merge) throw std::runtime_error("resolved: " + recipe);
  return std::move(merge).error();
}

std::string ResolvingTest::Faults(const std::string& recipe, const ResolveOptions& options) {
  return Told(Refused(recipe, options));
}

std::string ResolvingTest::Warnings(const std::string& recipe, const ResolveOptions& options) {
  return Join(Resolve(recipe, options).warnings, "\n");
}

const ResolvedTensor& TensorOf(const ResolvedMerge& merge, const std::string& name) {
  const auto found = std::find_if(merge.tensors.begin(), merge.tensors.end(),
                                  [&](const ResolvedTensor& tensor) { return tensor.name == name; });
  if (found == merge.tensors.end()) throw std::runtime_error("no output tensor " + name);
  return *found;
}

std::vector<std::string> NamesOf(const ResolvedMerge& merge) {
  std::vector<std::string> names;
  for (const ResolvedTensor& tensor : merge.tensors)
    names.push_back(tensor.name);
  return names;
}

double ParamOf(const ResolvedMerge& merge, const std::string& tensor, const std::string& name,
               std::optional<size_t> input) {
  const TensorParams& params = merge.params[TensorOf(merge, tensor).params];
  return input ? params.Get(*input, name) : params.Get(name);
}

std::vector<std::string> SourceLines(const ResolvedMerge& merge) {
  std::vector<std::string> lines;
  for (const ResolvedTensor& tensor : merge.tensors) {
    std::string line = tensor.name + " <";
    for (const TensorSource& source : tensor.sources) {
      const std::string& model = merge.models[source.model].name;
      line += Format(" {}:{}", model.substr(model.rfind('/') + 1), EntryOf(merge, source).name);
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace mergepipe::tests
