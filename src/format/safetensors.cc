#include "format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "format/json.h"
#include "format/sniff.h"

namespace mergepipe {
namespace {

constexpr uint64_t kSniffBytes = 256;
constexpr size_t kMaxDimensions = 64;

// Receives the JSON events of a header. The whole header is
//   { "__metadata__": {string: string} | null, NAME: {"dtype": string, "shape": [u64], "data_offsets": [u64,
//   u64]} }
// and unknown fields of a tensor object are skipped. Every method returns false to stop, with `error` set.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  std::string error;
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  bool has_metadata = false;

  bool null() override {
    if (Skipping()) return true;
    if (level_ == Level::kTop && key_ == "__metadata__") return true;
    return Unexpected("null");
  }
  bool boolean(bool) override { return Skipping() || Unexpected("a boolean"); }
  bool number_integer(int64_t value) override {
    return Skipping() || Unexpected(Format("the negative number {}", value));
  }
  bool number_float(double, const std::string& text) override {
    return Skipping() || Unexpected(Format("the number {}", text));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (Skipping()) return true;
    if (level_ != Level::kArray) return Unexpected(Format("the number {}", value));
    if (array_.size() == kMaxDimensions)
      return Stop(Format("{} has more than {} numbers in '{}'", Where(), kMaxDimensions, field_));
    array_.push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (Skipping()) return true;
    if (level_ == Level::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (level_ != Level::kTensor || field_ != "dtype") return Unexpected(Format("the text '{}'", value));
    const auto dtype = DTypeFromName(value);
    if (!dtype) return Stop(Format("{} has the unknown dtype '{}'", Where(), value));
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    if (Skipping()) return Deeper();
    if (level_ == Level::kOutside) {
      level_ = Level::kTop;
    } else if (level_ == Level::kTop && key_ == "__metadata__") {
      level_ = Level::kMetadata;
      has_metadata = true;
      seen_.clear();
    } else if (level_ == Level::kTop) {
      level_ = Level::kTensor;
      tensor_ = TensorEntry{};
      tensor_.name = name_;
      seen_.clear();
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (skip_depth_ > 0) return Shallower();
    if (level_ == Level::kTensor && !FinishTensor()) return false;
    level_ = level_ == Level::kTop ? Level::kOutside : Level::kTop;
    return true;
  }

  bool key(std::string& text) override {
    if (skip_depth_ > 0) return true;
    key_ = text;
    if (level_ == Level::kTop) {
      name_ = text;
      if (!names_.insert(text).second) return Stop(Format("the header names the tensor '{}' twice", text));
      return true;
    }
    if (!seen_.insert(text).second) return Stop(Format("{} has the field '{}' twice", Where(), text));
    field_ = text;
    const bool known = field_ == "dtype" || field_ == "shape" || field_ == "data_offsets";
    if (level_ == Level::kTensor && !known) skip_next_ = true;
    return true;
  }

  bool start_array(size_t) override {
    if (Skipping()) return Deeper();
    if (level_ != Level::kTensor || field_ == "dtype") return Unexpected("a list");
    level_ = Level::kArray;
    array_.clear();
    return true;
  }

  bool end_array() override {
    if (skip_depth_ > 0) return Shallower();
    level_ = Level::kTensor;
    if (field_ == "shape") {
      tensor_.shape = array_;
      return true;
    }
    if (array_.size() != 2)
      return Stop(Format("{} has {} data_offsets instead of 2", Where(), array_.size()));
    tensor_.begin = array_[0];
    tensor_.end = array_[1];
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Stop(Format("the header is not valid JSON at byte {}", position));
  }

 private:
  enum class Level { kOutside, kTop, kMetadata, kTensor, kArray };

  std::string Where() const {
    return level_ == Level::kMetadata ? Format("the metadata entry '{}'", key_)
                                      : Format("tensor '{}'", name_);
  }
  bool Stop(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }
  bool Unexpected(const std::string& what) {
    if (level_ == Level::kOutside) return Stop(Format("the header is {} instead of one JSON object", what));
    if (level_ == Level::kTop) return Stop(Format("the entry '{}' is {} instead of an object", name_, what));
    if (level_ == Level::kMetadata) return Stop(Format("{} is {} instead of a text", Where(), what));
    return Stop(Format("{} has {} in '{}'", Where(), what, field_));
  }
  // True inside the value of a field that nobody knows; a scalar value ends there, a list or object goes
  // deeper.
  bool Skipping() { return std::exchange(skip_next_, false) || skip_depth_ > 0; }
  bool Deeper() { return ++skip_depth_ < 64 || Stop(Format("{} is nested too deeply", Where())); }
  bool Shallower() {
    --skip_depth_;
    return true;
  }
  bool FinishTensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (seen_.count(field) == 0) return Stop(Format("{} has no '{}'", Where(), field));
    }
    tensors.push_back(std::move(tensor_));
    return true;
  }

  Level level_ = Level::kOutside;
  int skip_depth_ = 0;
  bool skip_next_ = false;
  std::string key_, name_, field_;
  std::set<std::string> names_, seen_;
  TensorEntry tensor_;
  std::vector<uint64_t> array_;
};

bool Multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// Sets `elements` and checks it against the byte range.
Result<void> CheckTensor(TensorEntry& tensor, const std::string& where) {
  const std::string name = Format("{}: tensor '{}'", where, tensor.name);
  tensor.elements = 1;
  for (const uint64_t dimension : tensor.shape) {
    if (!Multiply(tensor.elements, dimension, &tensor.elements)) {
      return Fail(Code::kInvalidInput,
                  Format("{} has shape {}, more elements than 64 bits count", name, ShapeText(tensor.shape)));
    }
  }
  uint64_t bits = 0;
  if (!Multiply(tensor.elements, DTypeBits(tensor.dtype), &bits)) {
    return Fail(Code::kInvalidInput,
                Format("{} has shape {}, more bits than 64 bits count", name, ShapeText(tensor.shape)));
  }
  if (bits % 8 != 0) {
    return Fail(Code::kInvalidInput, Format("{} has {} bits of {}, which is no whole number of bytes", name,
                                            bits, DTypeName(tensor.dtype)));
  }
  if (tensor.end < tensor.begin) {
    return Fail(Code::kInvalidInput, Format("{} has data_offsets [{}, {}], which end before they begin", name,
                                            tensor.begin, tensor.end));
  }
  if (tensor.bytes() != bits / 8) {
    return Fail(Code::kInvalidInput,
                Format("{} has shape {} of {}, which takes {} bytes, but data_offsets [{}, {}] hold {}", name,
                       ShapeText(tensor.shape), DTypeName(tensor.dtype), bits / 8, tensor.begin, tensor.end,
                       tensor.bytes()));
  }
  return {};
}

// The byte ranges must tile [0, data_bytes): no hole, no overlap, nothing after.
Result<void> CheckTiling(const SafetensorsHeader& header, const std::string& where) {
  uint64_t at = 0;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin != at) {
      return Fail(
          Code::kInvalidInput,
          Format("{}: tensor '{}' begins at data byte {} but the one before it ends at {}: {}", where,
                 tensor.name, tensor.begin, at, tensor.begin < at ? "they overlap" : "there is a hole"));
    }
    at = tensor.end;
  }
  const uint64_t data_bytes = header.file_size - header.data_start;
  if (at != data_bytes) {
    return Fail(
        Code::kInvalidInput,
        Format("{}: the header promises {} bytes of data but the file has {}; {}", where, at, data_bytes,
               at > data_bytes ? "probably an incomplete download" : "there are stray bytes at its end"));
  }
  return {};
}

Failure NotSafetensors(const std::string& where, std::string_view first_bytes, const std::string& otherwise) {
  const std::string foreign = SniffForeignFormat(first_bytes);
  return Fail(Code::kInvalidInput, Format("{}: {}", where, foreign.empty() ? otherwise : foreign));
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t file_size,
                                                 const std::string& where) {
  if (!IsUtf8(json)) return Fail(Code::kInvalidInput, Format("{}: the header is not UTF-8 text", where));
  if (StartsWith(json, "\xEF\xBB\xBF"))
    return Fail(Code::kInvalidInput, Format("{}: the header starts with a byte order mark", where));
  HeaderReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) {
    return Fail(
        Code::kInvalidInput,
        Format("{}: {}", where, reader.error.empty() ? "the header is not valid JSON" : reader.error));
  }
  SafetensorsHeader header;
  header.tensors = std::move(reader.tensors);
  header.metadata = std::move(reader.metadata);
  header.has_metadata = reader.has_metadata;
  header.data_start = 8 + json.size();
  header.file_size = file_size;
  header.digest = Hex(DigestOf(std::as_bytes(std::span(json))));
  for (TensorEntry& tensor : header.tensors)
    MP_TRY(CheckTensor(tensor, where));
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  MP_TRY(CheckTiling(header, where));
  return header;
}

Result<SafetensorsHeader> ReadSafetensorsHeader(const Source& source, Ledger& ledger, size_t account) {
  const std::string& where = source.Describe();
  const uint64_t size = source.Size();
  std::string first(Source::BufferBytes(kSniffBytes), '\0');
  const uint64_t sniffed = std::min(size, kSniffBytes);
  const auto head = MP_TRY(source.Read(0, sniffed, std::as_writable_bytes(std::span(first))));
  const std::string_view first_bytes(reinterpret_cast<const char*>(head.data), sniffed);
  if (size < 8) {
    return NotSafetensors(
        where, first_bytes,
        Format("has {} bytes, too few for a safetensors file; probably an incomplete download", size));
  }
  uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes) {
    return NotSafetensors(
        where, first_bytes,
        Format("is no safetensors file: its first 8 bytes name a header of {} bytes, the limit is {}", length,
               kMaxHeaderBytes));
  }
  if (length > size - 8) {
    return NotSafetensors(where, first_bytes,
                          Format("names a header of {} bytes but has only {} bytes after the length; "
                                 "probably an incomplete download",
                                 length, size - 8));
  }
  std::string text(Source::BufferBytes(length), '\0');
  const auto range = MP_TRY(source.Read(8, length, std::as_writable_bytes(std::span(text))));
  ledger.Charge(account, Purpose::kHeader, 8 + length);
  const std::string_view json(reinterpret_cast<const char*>(range.data), length);
  auto header = ParseSafetensorsHeader(json, size, where);
  const std::string foreign = header ? "" : SniffForeignFormat(first_bytes);
  if (!foreign.empty()) return Fail(Code::kInvalidInput, Format("{}: {}", where, foreign));
  return header;
}

SafetensorsLayout LayOutSafetensors(const std::vector<TensorEntry>& tensors,
                                    std::map<std::string, std::string> metadata) {
  metadata.try_emplace("format", "pt");
  OrderedJson header = OrderedJson::object();
  header["__metadata__"] = metadata;
  uint64_t at = 0;
  SafetensorsLayout layout;
  for (const TensorEntry& tensor : tensors) {
    const uint64_t bytes = tensor.elements * DTypeBits(tensor.dtype) / 8;
    header[tensor.name] = {
        {"dtype", DTypeName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
    layout.offsets.push_back(at);
    at += bytes;
  }
  std::string text = header.dump();
  const uint64_t data_start = (8 + text.size() + SafetensorsLayout::kDataAlignment - 1) /
                              SafetensorsLayout::kDataAlignment * SafetensorsLayout::kDataAlignment;
  text.append(data_start - 8 - text.size(), ' ');
  const uint64_t length = text.size();
  layout.prefix.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.prefix += text;
  for (uint64_t& offset : layout.offsets)
    offset += data_start;
  layout.file_size = data_start + at;
  return layout;
}

}  // namespace mergepipe
