#include "txn/manifest_shape.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/text.h"
#include "planner/plan.h"

namespace mergepipe {
namespace {

bool IsText(const Json& value) {
  return value.is_string();
}
bool IsCount(const Json& value) {
  return value.is_number_unsigned();
}
bool IsCountOrNothing(const Json& value) {
  return value.is_null() || IsCount(value);
}
bool IsNumber(const Json& value) {
  return value.is_number();
}
bool IsTruth(const Json& value) {
  return value.is_boolean();
}
template <bool (*Is)(const Json&)>
bool IsListOf(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), Is);
}

// A file inside the output folder, however deep.
bool IsInnerPath(const std::string& path) {
  size_t start = 0;
  while (start <= path.size()) {
    const size_t end = std::min(path.find('/', start), path.size());
    const std::string part = path.substr(start, end - start);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string::npos) return false;
    start = end + 1;
  }
  return true;
}
bool IsFileName(const Json& value) {
  return value.is_string() && IsInnerPath(value) && value.get<std::string>().find('/') == std::string::npos;
}

// How many chunk digests a tensor of this dtype, shape and leaf size has; nothing where they make no sense.
std::optional<uint64_t> ChunkCount(const Json& tensor) {
  const auto dtype = DTypeFromName(tensor.at("dtype").get<std::string>());
  const uint64_t leaf_bytes = tensor.at("leaf_bytes");
  constexpr uint64_t kMostLeafBytes = 8 * kLeafBytes;  // one-byte elements stored as eight
  if (!dtype || leaf_bytes == 0 || leaf_bytes > kMostLeafBytes) return std::nullopt;
  uint64_t bits = DTypeBits(*dtype);
  for (const uint64_t dimension : tensor.at("shape")) {
    if (__builtin_mul_overflow(bits, dimension, &bits)) return std::nullopt;
  }
  const uint64_t leaves = (bits / 8 + leaf_bytes - 1) / leaf_bytes;
  return (leaves + kLeavesPerChunk - 1) / kLeavesPerChunk;
}

class ShapeCheck {
 public:
  std::string Run(const Json& manifest) {
    Field(manifest, "", "root_digest", IsText);
    Core(Object(manifest, "", "core"));
    Envelope(Object(manifest, "", "envelope"));
    return fault_;
  }

 private:
  using Kind = bool (*)(const Json&);

  // The field, or null where it is missing or of another kind.
  const Json& Field(const Json& object, const std::string& path, const char* name, Kind kind) {
    static const Json kNothing;
    const auto field = object.find(name);
    if (object.is_object() && field != object.end() && kind(*field)) return *field;
    if (fault_.empty()) fault_ = path + name;
    return kNothing;
  }
  const Json& Object(const Json& object, const std::string& path, const char* name) {
    return Field(object, path, name, [](const Json& value) { return value.is_object(); });
  }
  template <typename Body>
  void Each(const Json& object, const std::string& path, const char* name, Body body) {
    const Json& list = Field(object, path, name, [](const Json& value) { return value.is_array(); });
    for (size_t i = 0; i < list.size() && fault_.empty(); ++i)
      body(list[i], Format("{}{}[{}].", path, name, i));
  }

  void Core(const Json& core) {
    for (const char* name : {"version", "method", "plan_digest"})
      Field(core, "core.", name, IsText);
    for (const char* name : {"seed", "block_bytes"})
      Field(core, "core.", name, IsCount);
    Object(core, "core.", "budget");
    Each(core, "core.", "inputs",
         [&](const Json& input, const std::string& path) { Field(input, path, "header_digest", IsText); });
    Each(core, "core.", "units", [&](const Json& unit, const std::string& path) {
      Field(unit, path, "file", IsFileName);
      Field(unit, path, "bytes", IsCount);
      Field(unit, path, "header_digest", IsText);
    });
    Each(core, "core.", "tensors",
         [&](const Json& tensor, const std::string& path) { Tensor(tensor, path); });
    Files(core, "core.", "files");
  }

  void Tensor(const Json& tensor, const std::string& path) {
    for (const char* name : {"name", "digest", "dtype", "rule"})
      Field(tensor, path, name, IsText);
    Field(tensor, path, "file", IsFileName);
    Field(tensor, path, "shape", IsListOf<IsCount>);
    Field(tensor, path, "leaf_bytes", IsCount);
    const Json& chunks = Field(tensor, path, "chunks", IsListOf<IsText>);
    if (fault_.empty() && ChunkCount(tensor) != chunks.size()) fault_ = path + "chunks";
    Each(tensor, path, "sources",
         [&](const Json& source, const std::string& at) { Field(source, at, "digest", IsText); });
    Object(tensor, path, "decision");
    Each(tensor, path, "thresholds", [&](const Json& threshold, const std::string& at) {
      for (const char* name : {"input", "equals", "equals_kept"})
        Field(threshold, at, name, IsCount);
      Field(threshold, at, "magnitude", IsNumber);
      if (threshold.contains("of")) Field(threshold, at, "of", IsText);
    });
  }

  void Envelope(const Json& envelope) {
    for (const char* name : {"recipe", "recipe_path"})
      Field(envelope, "envelope.", name, IsText);
    const Json& options = Object(envelope, "envelope.", "options");
    Field(options, "envelope.options.", "allow_nonfinite", IsTruth);
    Field(options, "envelope.options.", "missing", IsText);
    Field(options, "envelope.options.", "memory_bytes", IsCount);
    const Json& form = Object(options, "envelope.options.", "form");
    Field(form, "envelope.options.form.", "shard_bytes", IsCountOrNothing);
    Field(form, "envelope.options.form.", "copies_tokenizer", IsTruth);
    Field(form, "envelope.options.form.", "writes_card", IsTruth);
    Field(envelope, "envelope.", "paths", [](const Json& paths) {
      return paths.is_object() && std::all_of(paths.begin(), paths.end(), IsText);
    });
    Files(envelope, "envelope.", "notes");
  }

  void Files(const Json& object, const std::string& path, const char* name) {
    for (const auto& [file, record] : Object(object, path, name).items()) {
      const std::string at = Format("{}{}.{}.", path, name, file);
      if (fault_.empty() && !IsInnerPath(file)) fault_ = at;
      Field(record, at, "digest", IsText);
    }
  }

  std::string fault_;
};

}  // namespace

std::string MisshapenField(const Json& manifest) {
  return ShapeCheck().Run(manifest);
}

}  // namespace mergepipe
