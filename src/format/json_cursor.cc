#include "format/json_cursor.h"

#include <algorithm>

#include "base/text.h"
#include "format/json.h"

namespace mergepipe {
namespace {

constexpr size_t kMaxDepth = 64;

bool EndsScalar(char c) {
  return c == ',' || c == ']' || c == '}' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

bool IsControl(char c) {
  return static_cast<unsigned char>(c) < 0x20;
}

}  // namespace

void JsonCursor::SkipSpace() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

char JsonCursor::Peek() {
  SkipSpace();
  return bad_ || at_ >= text_.size() ? '\0' : text_[at_];
}

size_t JsonCursor::Offset() {
  SkipSpace();
  return at_;
}

bool JsonCursor::Expect(char c) {
  if (Peek() == c) {
    ++at_;
    return true;
  }
  Fault(Format("a '{}' is missing", c));
  return false;
}

bool JsonCursor::Open(char bracket) {
  if (!Expect(bracket)) return false;
  if (++depth_ > kMaxDepth) Fault(Format("is nested deeper than {} levels", kMaxDepth));
  return !bad_;
}

bool JsonCursor::Closes(char bracket) {
  if (Peek() != bracket) return false;
  ++at_;
  return true;
}

// After a value: true where another follows.
bool JsonCursor::Goes(char closing) {
  if (bad_ || Closes(closing)) return false;
  return Expect(',');
}

void JsonCursor::SkipString() {
  if (!Expect('"')) return;
  while (at_ < text_.size() && text_[at_] != '"')
    at_ += text_[at_] == '\\' ? 2 : 1;
  if (at_ >= text_.size()) {
    at_ = text_.size();
    return Fault("a text does not end");
  }
  ++at_;
}

std::optional<std::string> JsonCursor::String() {
  const size_t start = Offset();
  SkipString();
  if (bad_) return std::nullopt;
  const std::string_view quoted = text_.substr(start, at_ - start);
  const std::string_view plain = quoted.substr(1, quoted.size() - 2);
  const bool is_plain =
      std::none_of(plain.begin(), plain.end(), [](char c) { return c == '\\' || IsControl(c); });
  if (is_plain && IsUtf8(plain)) return std::string(plain);
  const Json parsed = Json::parse(quoted.begin(), quoted.end(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_string()) return parsed.get<std::string>();
  Fault("a text is not valid");
  return std::nullopt;
}

std::optional<uint64_t> JsonCursor::Unsigned() {
  const size_t start = Offset();
  SkipScalar();
  if (bad_) return std::nullopt;
  if (const auto number = ParseUnsigned(text_.substr(start, at_ - start))) return *number;
  Fault(Format("'{}' is no whole number", text_.substr(start, std::min<size_t>(at_ - start, 40))));
  return std::nullopt;
}

void JsonCursor::SkipScalar() {
  const size_t start = at_;
  while (at_ < text_.size() && !EndsScalar(text_[at_]))
    ++at_;
  const std::string_view scalar = text_.substr(start, at_ - start);
  if (!Json::accept(scalar.begin(), scalar.end())) Fault("a value is not valid");
}

void JsonCursor::SkipNested() {
  if (text_[at_] == '{') return Members([this](const std::string&) { Raw(); });
  Items([this] { Raw(); });
}

std::string_view JsonCursor::Raw() {
  const char first = Peek();
  const size_t start = at_;
  if (first == '{' || first == '[') {
    SkipNested();
  } else if (first == '"') {
    String();
  } else {
    SkipScalar();
  }
  return bad_ ? std::string_view() : text_.substr(start, at_ - start);
}

void JsonCursor::Fault(const std::string& what) {
  if (!bad_) fault_ = Format("{}: is not valid at byte {}: {}", where_, at_, what);
  bad_ = true;
}

Result<void> JsonCursor::Verdict() {
  SkipSpace();
  if (!bad_ && at_ < text_.size()) Fault("something follows the document");
  if (bad_) return Fail(Code::kInvalidInput, fault_);
  return {};
}

}  // namespace mergepipe
