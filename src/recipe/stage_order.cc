#include "recipe/stage_order.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"

namespace mergepipe {
namespace {

class StageSorter {
 public:
  explicit StageSorter(const std::vector<Recipe>& recipes) : recipes_(recipes), sorted_(recipes.size()) {
    found_.needs.resize(recipes.size());
  }

  Result<StageOrder> Run() {
    CollectNames();
    CollectNeeds();
    Sort();
    if (faults_.size() == 1) return Fail(Code::kUsage, faults_.front());
    if (!faults_.empty())
      return Fail(Error{Code::kUsage, Format("{}: {} faults", recipes_[0].where, faults_.size()), faults_});
    found_.result = LastOrUnnamed();
    return std::move(found_);
  }

 private:
  std::string At(const RecipePlace& place) const {
    return Format("{}:{}:{}", recipes_[0].where, place.line, place.column);
  }

  void CollectNames() {
    std::optional<size_t> unnamed;
    for (size_t i = 0; i < recipes_.size(); ++i) {
      const Recipe& recipe = recipes_[i];
      if (recipe.name.empty()) {
        if (unnamed)
          faults_.push_back(
              Format("{}: of the recipes of one file only the result may be without a 'name', but the one "
                     "in line {} has none either",
                     At(recipe.at), recipes_[*unnamed].at.line));
        unnamed = i;
      } else if (const auto [known, is_new] = by_name_.emplace(recipe.name, i); !is_new) {
        faults_.push_back(Format("{}: the recipe in line {} has the name '{}' already", At(recipe.name_at),
                                 recipes_[known->second].name_at.line, recipe.name));
      }
    }
  }

  void CollectNeeds() {
    for (size_t i = 0; i < recipes_.size(); ++i) {
      for (const ModelRef* ref : ModelRefs(recipes_[i])) {
        const auto named = by_name_.find(ref->path);
        auto& needs = found_.needs[i];
        if (named != by_name_.end() && std::find(needs.begin(), needs.end(), named->second) == needs.end())
          needs.push_back(named->second);
      }
    }
  }

  bool IsReady(size_t i) const {
    return !sorted_[i] && std::all_of(found_.needs[i].begin(), found_.needs[i].end(),
                                      [&](size_t needed) { return sorted_[needed]; });
  }

  // The first that is ready comes next.
  void Sort() {
    while (found_.order.size() < recipes_.size()) {
      size_t next = 0;
      while (next < recipes_.size() && !IsReady(next))
        ++next;
      if (next == recipes_.size()) return TellCycle();
      sorted_[next] = true;
      found_.order.push_back(next);
    }
  }

  // Goes from need to need until one comes again: what is left all waits for a circle.
  void TellCycle() {
    std::vector<size_t> path;
    auto at = static_cast<size_t>(std::find(sorted_.begin(), sorted_.end(), false) - sorted_.begin());
    while (std::find(path.begin(), path.end(), at) == path.end()) {
      path.push_back(at);
      at = *std::find_if(found_.needs[at].begin(), found_.needs[at].end(),
                         [&](size_t n) { return !sorted_[n]; });
    }
    std::string circle;
    for (auto it = std::find(path.begin(), path.end(), at); it != path.end(); ++it)
      circle += Format("'{}' needs ", recipes_[*it].name);
    const std::string& name = recipes_[at].name;
    faults_.push_back(
        Format("{}: the recipes go in a circle: {}'{}'; a folder of that name is written './{}'",
               At(recipes_[at].name_at), circle, name, name));
  }

  size_t LastOrUnnamed() const {
    std::vector<bool> needed(recipes_.size());
    for (const auto& needs : found_.needs) {
      for (const size_t n : needs)
        needed[n] = true;
    }
    for (size_t i = 0; i < recipes_.size(); ++i) {
      if (recipes_[i].name.empty()) return i;
    }
    return *std::find_if(found_.order.rbegin(), found_.order.rend(), [&](size_t i) { return !needed[i]; });
  }

  const std::vector<Recipe>& recipes_;
  std::map<std::string, size_t> by_name_;
  std::vector<bool> sorted_;
  StageOrder found_;
  std::vector<std::string> faults_;
};

}  // namespace

Result<StageOrder> OrderStages(const std::vector<Recipe>& recipes) {
  return StageSorter(recipes).Run();
}

}  // namespace mergepipe
