#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "mergepipe/result.h"
#include "storage/ledger.h"
#include "storage/source.h"

namespace mergepipe {

/// One tensor of one file. Row-major, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;  ///< [] is a scalar; dimensions may be 0
  uint64_t elements = 0;
  uint64_t begin = 0;  ///< byte range in the data part, half open
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

/// A validated safetensors header: the tensors tile the data part and the data part ends the file.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in order of (begin, end, name)
  std::map<std::string, std::string> metadata;
  bool has_metadata = false;
  uint64_t data_start = 0;  ///< offset of the data part in the file: 8 + header length
  uint64_t file_size = 0;
  std::string digest;  ///< of the header's bytes, 32 hexadecimal digits
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// Reads and validates the header of a file, every rule of the format, with checked arithmetic; reads no
/// data. Fails with kInvalidInput, naming the file and what it is instead when it is known (Git LFS pointer,
/// pickle, GGUF, ZIP, HTML). Bytes are charged to `account` as kHeader.
Result<SafetensorsHeader> ReadSafetensorsHeader(const Source& source, Ledger& ledger, size_t account);

/// Validates a header's JSON text against the size of its file. `where` starts every message.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t file_size,
                                                 const std::string& where);

/// A file to write: tensors in file order (begin and end are ignored) and metadata.
struct SafetensorsLayout {
  std::string prefix;  ///< the file's first bytes: length and header, padded with spaces to kDataAlignment
  std::vector<uint64_t> offsets;  ///< of each tensor's first byte in the file, in the order given
  uint64_t file_size = 0;
  static constexpr uint64_t kDataAlignment = 4096;
};

/// Lays a file out: header first (data starts at a multiple of kDataAlignment), tensors packed in the order
/// given. `metadata` gets `format: pt` where it names no format. Tensors should be ordered so that each
/// starts at a multiple of its element size (see OrderForWriting).
SafetensorsLayout LayOutSafetensors(const std::vector<TensorEntry>& tensors,
                                    std::map<std::string, std::string> metadata);

}  // namespace mergepipe
