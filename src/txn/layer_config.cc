#include "txn/layer_config.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"

namespace mergepipe {
namespace {

constexpr std::array<const char*, 5> kCounts = {"num_hidden_layers", "n_layer", "num_layers", "n_layers",
                                                "depth"};
constexpr std::array<const char*, 2> kDecoderCounts = {"num_decoder_layers", "decoder_layers"};
constexpr std::array<const char*, 1> kEncoderCounts = {"encoder_layers"};
// Lists with an entry for each layer whose names do not say so.
constexpr std::array<const char*, 4> kOtherLists = {"num_query_heads", "num_kv_heads", "ffn_multipliers",
                                                    "block_configs"};
// Lists of the numbers of layers that are special.
constexpr std::array<const char*, 3> kNumberLists = {"mlp_only_layers", "attn_layer_indices",
                                                     "cross_attention_layers"};

template <typename List>
bool Has(const List& list, const std::string& key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

bool HasPart(const std::string& prefix, std::string_view start) {
  return ("." + prefix).find("." + std::string(start)) != std::string::npos;
}

// The objects of a config that speak of a stack.
std::vector<OrderedJson*> SectionsOf(const std::string& prefix, OrderedJson& config) {
  const auto object = [&](const char* key) -> OrderedJson* {
    return config.contains(key) && config[key].is_object() ? &config[key] : nullptr;
  };
  const bool seen = HasPart(prefix, "vis");
  const bool heard = HasPart(prefix, "audio");
  if (OrderedJson* const section = seen ? object("vision_config") : heard ? object("audio_config") : nullptr)
    return {section};
  if (OrderedJson* const text = object("text_config")) return {&config, text};
  return {&config};
}

class LayerFitter {
 public:
  LayerFitter(const SlicedStack& stack, OrderedJson& section) : stack_(stack), section_(section) {}

  bool Run(bool is_part) {
    is_part_ = is_part;
    AddLayerTypes();
    for (auto& [key, value] : section_.items()) {
      if (IsCount(key) && value.is_number_integer()) {
        // Beside a part for the text, what counts something else is left alone.
        if (!is_part_ || value == stack_.donor_layers) Set(value, Layers());
      } else if (value.is_array() && Has(kNumberLists, key)) {
        Set(value, MappedNumbers(value));
      } else if (value.is_array() && static_cast<int64_t>(value.size()) == stack_.donor_layers &&
                 IsList(key)) {
        Set(value, MappedList(value));
      }
    }
    return changed_;
  }

 private:
  int64_t Layers() const { return static_cast<int64_t>(stack_.sources.size()); }

  // Where encoder and decoder are counted apart, each has a key of its own.
  bool IsCount(const std::string& key) const {
    const auto any = [&](const auto& keys) {
      return std::any_of(keys.begin(), keys.end(), [&](const char* k) { return section_.contains(k); });
    };
    if (HasPart(stack_.prefix, "decoder") && any(kDecoderCounts)) return Has(kDecoderCounts, key);
    if (HasPart(stack_.prefix, "encoder") && Has(kEncoderCounts, key)) return true;
    return Has(kCounts, key);
  }

  static bool IsList(const std::string& key) {
    return key.find("layer") != std::string::npos || Has(kOtherLists, key);
  }

  bool KeepsNumbers() const {
    int64_t layer = 0;
    return std::all_of(stack_.sources.begin(), stack_.sources.end(),
                       [&](int64_t source) { return source == layer++; });
  }

  OrderedJson MappedList(const OrderedJson& list) const {
    OrderedJson mapped = OrderedJson::array();
    for (const int64_t source : stack_.sources)
      mapped.push_back(list[static_cast<size_t>(std::min(source, stack_.donor_layers - 1))]);
    return mapped;
  }

  OrderedJson MappedNumbers(const OrderedJson& numbers) const {
    OrderedJson mapped = OrderedJson::array();
    for (size_t layer = 0; layer < stack_.sources.size(); ++layer) {
      if (std::find(numbers.begin(), numbers.end(), OrderedJson(stack_.sources[layer])) != numbers.end())
        mapped.push_back(layer);
    }
    return mapped;
  }

  // Every n-th layer attends to everything, the others to a window: a rule of numbers that slices change.
  void AddLayerTypes() {
    static const std::map<std::string, int64_t> kPeriods = {
        {"gemma2", 2}, {"gemma3", 6}, {"gemma3_text", 6}, {"cohere2", 4}};
    const auto type = section_.find("model_type");
    if (type == section_.end() || !type->is_string() || section_.contains("layer_types")) return;
    const auto usual = kPeriods.find(type->get<std::string>());
    if (usual == kPeriods.end() || section_.contains("text_config") || KeepsNumbers()) return;
    const auto given = section_.find("sliding_window_pattern");
    const int64_t period = given != section_.end() && given->is_number_integer() && *given > 0
                               ? given->get<int64_t>()
                               : usual->second;
    OrderedJson types = OrderedJson::array();
    for (int64_t layer = 0; layer < stack_.donor_layers; ++layer)
      types.push_back((layer + 1) % period == 0 ? "full_attention" : "sliding_attention");
    section_["layer_types"] = std::move(types);
    changed_ = true;
  }

  void Set(OrderedJson& value, OrderedJson wanted) {
    changed_ = changed_ || value != wanted;
    value = std::move(wanted);
  }

  const SlicedStack& stack_;
  OrderedJson& section_;
  bool is_part_ = false;
  bool changed_ = false;
};

}  // namespace

bool FitLayers(const SlicedStack& stack, OrderedJson& config) {
  bool changed = false;
  const auto sections = SectionsOf(stack.prefix, config);
  for (OrderedJson* section : sections)
    changed = LayerFitter(stack, *section).Run(sections.size() > 1 && section == &config) || changed;
  return changed;
}

}  // namespace mergepipe
