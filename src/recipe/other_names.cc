#include "recipe/other_names.h"

#include <array>
#include <set>
#include <vector>

#include "base/text.h"

namespace mergepipe {
namespace {

struct Spelling {
  const char* one;
  const char* another;
};
constexpr std::array<Spelling, 2> kEnds = {
    {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}}};
constexpr Spelling kMixture = {".block_sparse_moe.", ".mlp."};

std::set<std::string> FirstParts(const Checkpoint& checkpoint) {
  std::set<std::string> parts;
  for (const auto& [name, place] : checkpoint.tensors())
    parts.insert(name.substr(0, name.find('.') + 1));
  return parts;
}

void AddSpellings(const std::string& name, std::vector<std::string>& names) {
  for (const auto& [one, another] : kEnds) {
    for (const auto& [from, to] : {Spelling{one, another}, Spelling{another, one}}) {
      const std::string end = from;
      if (EndsWith(name, end)) names.push_back(name.substr(0, name.size() - end.size()) + to);
    }
  }
  for (const auto& [from, to] : {kMixture, Spelling{kMixture.another, kMixture.one}}) {
    const std::string part = from;
    const size_t at = name.find(part);
    if (at != std::string::npos) names.push_back(name.substr(0, at) + to + name.substr(at + part.size()));
  }
}

// All spellings of a name, with one part less in front, as it is, and with one of these parts more.
std::vector<std::string> Candidates(const std::string& name, const std::set<std::string>& first_parts) {
  std::vector<std::string> starts = {name};
  const size_t dot = name.find('.');
  if (dot != std::string::npos) starts.push_back(name.substr(dot + 1));
  for (const std::string& part : first_parts)
    starts.push_back(part + name);
  std::vector<std::string> all = starts;
  for (const std::string& start : starts)
    AddSpellings(start, all);
  return all;
}

}  // namespace

std::map<std::string, std::string> NamesIn(const Checkpoint& other, const Checkpoint& checkpoint) {
  std::map<std::string, std::string> renamed;
  std::set<std::string> taken;
  const std::set<std::string> first_parts = FirstParts(other);
  for (const auto& [name, place] : checkpoint.tensors()) {
    if (other.Find(name) != nullptr) continue;
    for (const std::string& candidate : Candidates(name, first_parts)) {
      const bool is_free = checkpoint.Find(candidate) == nullptr && taken.count(candidate) == 0;
      if (other.Find(candidate) == nullptr || !is_free) continue;
      taken.insert(candidate);
      renamed[name] = candidate;
      break;
    }
  }
  return renamed;
}

}  // namespace mergepipe
