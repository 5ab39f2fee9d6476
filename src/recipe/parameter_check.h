#pragma once

#include <string>
#include <vector>

#include "methods/method.h"
#include "recipe/scope.h"

namespace mergepipe {

/// Finds what a recipe says in vain: parameters that nobody knows and filters that match nothing are faults,
/// what this method ignores is a warning.
class ParameterCheck {
 public:
  ParameterCheck(const Method& method, const Recipe& recipe) : method_(method), recipe_(recipe) {}

  /// Checks every parameter name at every level.
  void CheckNames();
  /// Checks every filter against the names that the scopes met, and every gradient against their number of
  /// layers, or where the merge knows none against that.
  void CheckReach(const std::vector<Scope>& scopes, bool knows_layers);

  bool HasFaults() const { return !faults_.empty(); }
  std::vector<std::string> TakeFaults() { return std::move(faults_); }
  std::vector<std::string> TakeWarnings() { return std::move(warnings_); }

 private:
  // What the entries of one level can have an effect on.
  struct Reach {
    const std::set<std::string>& names;  // tensors of its scope
    const std::set<std::string>& all;    // tensors of the whole merge
    int64_t layers;
  };
  void CheckLevel(const Parameters& parameters, bool model_level);
  void CheckInputs(const std::vector<InputSpec>& inputs);
  void CheckSlices(const std::vector<SliceSpec>& slices);
  void CheckEntries(const Parameters& parameters, const Reach& reach);
  void CheckFilter(const std::string& name, const Setting::Entry& entry, const Reach& reach);
  std::string At(const RecipePlace& place) const;

  const Method& method_;
  const Recipe& recipe_;
  bool knows_layers_ = true;
  std::vector<std::string> faults_, warnings_;
};

}  // namespace mergepipe
