#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace mergepipe {

/// What the caller can do about an error. Each code has one exit status (docs/cli.md).
enum class Code {
  kUsage,         ///< the request is wrong: change the command line or the recipe (exit 2)
  kInvalidInput,  ///< an input file is damaged, odd or does not fit the others: fix the input (exit 2)
  kUnsupported,   ///< a known thing that this version does not do (exit 2)
  kNoSpace,       ///< the disk is too small, told before anything was written: free space (exit 2)
  kDiskFull,      ///< the disk filled up midway: free space and try again (exit 75)
  kIo,            ///< the operating system refused a read or a write (exit 1)
  kDifference,    ///< verification found a difference (exit 3)
  kTransient,     ///< failed midway for a reason that may pass: try again (exit 75)
  kInterrupted,   ///< SIGINT or SIGTERM stopped the work (exit 130 or 143)
  kInternal,      ///< a bug of ours (exit 1)
};

/// Returns the stable word of a code, as `--json` prints it ("usage", "invalid_input", …).
const char* CodeName(Code code);

/// An error is a value: where, what (both sides), what to do. `faults` lists every single finding when one
/// request has several; it is empty when `message` says it all.
struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::vector<std::string> faults;
};

/// Wraps an Error so that it converts to any Result<T>.
struct Failure {
  Error error;
};

[[nodiscard]] inline Failure Fail(Code code, std::string message) {
  return Failure{Error{code, std::move(message), {}}};
}
[[nodiscard]] inline Failure Fail(Error error) {
  return Failure{std::move(error)};
}

/// A value or an Error; the names follow std::expected.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Failure failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure failure) : error_(std::move(failure.error)) {}

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  void value() const {}
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace mergepipe
