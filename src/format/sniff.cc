#include "format/sniff.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/text.h"
#include "format/safetensors.h"

namespace mergepipe {
namespace {

bool LooksLikeHtml(std::string_view bytes) {
  const size_t start = bytes.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos) return false;
  std::string lower(bytes.substr(start, 64));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return StartsWith(lower, "<!doctype") || StartsWith(lower, "<html") || StartsWith(lower, "<?xml");
}

// A protocol mark, 2 to 5. The length of a safetensors header may begin like that too (640 is 80 02), but
// what follows in a pickle makes it far too large for one.
bool LooksLikePickle(std::string_view bytes) {
  if (bytes.size() < 2 || bytes[0] != '\x80' || bytes[1] < 2 || bytes[1] > 5) return false;
  uint64_t length = kMaxHeaderBytes + 1;
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  return length > kMaxHeaderBytes;
}

}  // namespace

std::string SniffForeignFormat(std::string_view bytes) {
  using namespace std::string_view_literals;
  if (StartsWith(bytes, "version https://git-lfs")) {
    return "is a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'";
  }
  if (StartsWith(bytes, "PK\x03\x04"sv)) {
    return "is a ZIP archive, most likely a PyTorch pickle (.bin, .pt); convert it to safetensors first";
  }
  if (StartsWith(bytes, "GGUF"sv)) {
    return "is a GGUF file; merge the safetensors checkpoint that it was made from";
  }
  if (LooksLikePickle(bytes)) {
    return "is a Python pickle (.bin, .pt, .ckpt); convert it to safetensors first";
  }
  if (StartsWith(bytes, "\x89HDF\r\n\x1a\n"sv))
    return "is an HDF5 file (.h5); convert it to safetensors first";
  if (StartsWith(bytes, "\x1f\x8b\x08"sv)) return "is gzip-compressed; unpack it first";
  if (LooksLikeHtml(bytes)) return "is an HTML page, perhaps a saved error page; download the file again";
  return "";
}

}  // namespace mergepipe
