#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "mergepipe/result.h"

namespace mergepipe {

/// Walks through the text of one JSON document without building it: for files that are too large to be held
/// as a document, and where the bytes of a part are wanted. Every value has to be taken by one of the calls.
/// The first fault ends the walk: all later calls yield nothing, and Verdict tells it.
class JsonCursor {
 public:
  JsonCursor(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  /// The first character of the next value: one of {["-0123456789tfn; 0 at the end or after a fault.
  char Peek();
  /// Calls take(key) for each member of the object that comes next; `take` takes the value.
  template <typename Take>
  void Members(Take take) {
    if (!Open('{')) return;
    for (bool more = !Closes('}'); more && !bad_; more = Goes('}')) {
      auto key = String();
      if (!key || !Expect(':')) return;
      take(std::move(*key));
    }
    --depth_;
  }
  /// Calls take() for each value of the array that comes next.
  template <typename Take>
  void Items(Take take) {
    if (!Open('[')) return;
    for (bool more = !Closes(']'); more && !bad_; more = Goes(']'))
      take();
    --depth_;
  }
  std::optional<std::string> String();
  /// A whole number that is not negative.
  std::optional<uint64_t> Unsigned();
  /// Takes whatever comes next and returns its text.
  std::string_view Raw();

  /// Where the next value begins in the text.
  size_t Offset();
  /// Where the last value that was taken ended.
  size_t End() const { return at_; }
  void Fault(const std::string& what);
  /// Fails with kInvalidInput on the first fault, and where anything is left behind the document.
  Result<void> Verdict();

 private:
  void SkipSpace();
  bool Open(char bracket);
  bool Closes(char bracket);
  bool Goes(char closing);
  bool Expect(char c);
  void SkipString();
  void SkipScalar();
  void SkipNested();

  std::string_view text_;
  std::string where_;
  size_t at_ = 0;
  size_t depth_ = 0;
  bool bad_ = false;
  std::string fault_;
};

}  // namespace mergepipe
