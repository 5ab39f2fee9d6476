#include "mergepipe/result.h"

namespace mergepipe {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kUsage:
      return "usage";
    case Code::kInvalidInput:
      return "invalid_input";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kNoSpace:
      return "no_space";
    case Code::kDiskFull:
      return "disk_full";
    case Code::kIo:
      return "io";
    case Code::kDifference:
      return "difference";
    case Code::kTransient:
      return "transient";
    case Code::kInterrupted:
      return "interrupted";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

}  // namespace mergepipe
