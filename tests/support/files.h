#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace mergepipe::tests {

/// A folder of one test's own, removed with all that is in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Writes a whole file, making the folders above it. Throws when the system refuses, as all of these do.
void WriteFile(const std::string& path, std::string_view bytes);

/// Makes a file of `size` bytes that takes no room: zeros behind `start`.
void WriteSparseFile(const std::string& path, std::string_view start, uint64_t size);

std::string ReadFile(const std::string& path);

/// All files under a folder by their path in it.
std::map<std::string, std::string> ReadTree(const std::string& folder);

/// `text` with every `from` replaced by `to`.
std::string Replace(std::string text, const std::string& from, const std::string& to);

}  // namespace mergepipe::tests
