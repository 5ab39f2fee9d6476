#pragma once

#include <string>
#include <vector>

namespace mergepipe {

/// One document of a YAML stream, as it stands there.
struct RecipeDocument {
  std::string text;
  int first_line = 1;  ///< of the text in the stream, counted from 1
};

/// Cuts a stream at its document marks: lines that begin with `---` or `...`, which YAML allows nowhere else.
/// Documents that hold nothing but comments and directives are left out. A stream with one document is that
/// document, marks and comments around it included.
std::vector<RecipeDocument> SplitDocuments(const std::string& stream);

}  // namespace mergepipe
