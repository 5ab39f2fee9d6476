#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "mergepipe/result.h"

namespace mergepipe {

/// An open file descriptor; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

inline std::string SystemText(int error) {
  return std::strerror(error);
}

/// The code of a failed write.
inline Code WriteCode(int error) {
  if (error == ENOSPC || error == EDQUOT) return Code::kDiskFull;
  return error == EAGAIN ? Code::kTransient : Code::kIo;
}

}  // namespace mergepipe
