#include "format/json.h"

#include <set>
#include <vector>

#include "base/text.h"

namespace mergepipe {
namespace {

constexpr int kMaxDepth = 64;

// Watches a parse: nlohmann itself lets the last of several equal keys win, silently.
class StrictWatch {
 public:
  template <typename AnyJson>
  bool operator()(int depth, typename AnyJson::parse_event_t event, AnyJson& parsed) {
    using Event = typename AnyJson::parse_event_t;
    if (depth > kMaxDepth) too_deep_ = true;
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!keys_.back().insert(key).second && duplicate_.empty()) duplicate_ = key;
    }
    return true;
  }

  std::string Complaint() const {
    if (too_deep_) return Format("is nested deeper than {} levels", kMaxDepth);
    if (!duplicate_.empty()) return Format("has the key '{}' twice", duplicate_);
    return "";
  }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string duplicate_;
  bool too_deep_ = false;
};

template <typename AnyJson>
Result<AnyJson> Parse(std::string_view text, const std::string& where) {
  if (StartsWith(text, "\xEF\xBB\xBF")) {
    return Fail(Code::kInvalidInput,
                Format("{}: starts with a byte order mark; save it as plain UTF-8", where));
  }
  StrictWatch watch;
  try {
    AnyJson parsed = AnyJson::parse(text.begin(), text.end(),
                                    [&](int depth, typename AnyJson::parse_event_t event, AnyJson& value) {
                                      return watch(depth, event, value);
                                    });
    const std::string complaint = watch.Complaint();
    if (!complaint.empty()) return Fail(Code::kInvalidInput, Format("{}: {}", where, complaint));
    return parsed;
  } catch (const typename AnyJson::exception& error) {
    return Fail(Code::kInvalidInput, Format("{}: is not valid JSON: {}", where, error.what()));
  }
}

}  // namespace

Result<Json> ParseJson(std::string_view text, const std::string& where) {
  return Parse<Json>(text, where);
}

Result<OrderedJson> ParseOrderedJson(std::string_view text, const std::string& where) {
  return Parse<OrderedJson>(text, where);
}

std::string JsonText(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace mergepipe
