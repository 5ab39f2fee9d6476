#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/json.h"

namespace mergepipe {

inline constexpr const char* kTokenizerConfigName = "tokenizer_config.json";
inline constexpr const char* kTemplateName = "chat_template.jinja";

/// The names of the templates that come with the program.
std::vector<std::string> BuiltInTemplateNames();
/// The Jinja text of one of them; nothing for any other name.
std::optional<std::string> BuiltInTemplate(const std::string& name);

/// The chat template that a loader finds beside a checkpoint: chat_template.jinja, else the key chat_template
/// of tokenizer_config.json (of several the one named "default"). Fails with kInvalidInput where a file does
/// not parse.
Result<std::optional<std::string>> ChatTemplateOf(const Checkpoint& checkpoint);

/// A tokenizer_config.json that holds this template and no other one.
OrderedJson WithChatTemplate(OrderedJson tokenizer_config, const std::string& chat_template);

/// True for side files that hold chat templates and nothing else, so that another template takes their place.
bool HoldsChatTemplates(const std::string& side_file);

}  // namespace mergepipe
