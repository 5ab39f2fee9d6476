#include "recipe/documents.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace mergepipe {
namespace {

bool IsMark(std::string_view line) {
  if (!StartsWith(line, "---") && !StartsWith(line, "...")) return false;
  return line.size() == 3 || std::string_view(" \t\r").find(line[3]) != std::string_view::npos;
}

// White space, a comment or a directive.
bool SaysNothing(std::string_view line) {
  if (StartsWith(line, "\xef\xbb\xbf")) line.remove_prefix(3);
  const size_t first = line.find_first_not_of(" \t\r");
  return first == std::string_view::npos || line[first] == '#' || line[0] == '%';
}

std::string_view WithoutEnd(std::string_view line) {
  if (EndsWith(line, "\n")) line.remove_suffix(1);
  return line;
}

}  // namespace

std::vector<RecipeDocument> SplitDocuments(const std::string& stream) {
  std::vector<RecipeDocument> documents;
  RecipeDocument document;
  bool says_something = false;
  const auto end_document = [&] {
    if (says_something) documents.push_back(document);
    says_something = false;
  };
  int number = 1;
  for (size_t start = 0; start < stream.size(); ++number) {
    const size_t end = std::min(stream.find('\n', start), stream.size() - 1) + 1;
    std::string line = stream.substr(start, end - start);
    start = end;
    const bool is_mark = IsMark(WithoutEnd(line));
    if (is_mark) {
      end_document();
      document = {.text = "", .first_line = number};
      line.replace(0, 3, "   ");  // what follows the mark on its line keeps its column
    }
    says_something = says_something || !SaysNothing(WithoutEnd(line));
    document.text += line;
  }
  end_document();
  if (documents.size() == 1) documents[0] = {.text = stream, .first_line = 1};
  return documents;
}

}  // namespace mergepipe
