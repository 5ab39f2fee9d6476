#include "format/chat_template.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "base/try.h"

namespace mergepipe {
namespace {

struct NamedTemplate {
  const char* name;
  const char* text;
};

// Written for the environment that transformers renders in; everything that is printed stands in an
// expression, so that trimming of blocks changes nothing. What they render is what mergekit's templates of
// these names render, their spaces included.
constexpr std::array<NamedTemplate, 5> kBuiltIn = {{
    {"alpaca",
     "{%- set ns = namespace(system='') -%}"
     "{%- for m in messages if m['role'] == 'system' -%}{%- set ns.system = m['content'] | trim -%}{%- "
     "endfor -%}"
     "{{- ns.system + '\\n\\n' -}}"
     "{%- for m in messages -%}"
     "{%- set heading = {'user': 'Instruction', 'assistant': 'Response'}.get(m['role']) -%}"
     "{%- if heading -%}"
     "{{- '### ' + heading + ':\\n' + m['content'] | trim + ('' if loop.last else '\\n\\n') -}}"
     "{%- endif -%}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt and (messages | last)['role'] != 'assistant' -%}"
     "{{- '### Response:\\n' -}}"
     "{%- endif -%}"},
    {"chatml",
     "{%- for m in messages -%}"
     "{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"},
    {"exaone",
     "{%- for m in messages -%}"
     "{%- if loop.first and m['role'] != 'system' -%}{{- '        [|system|][|endofturn|]\\n\\n' -}}{%- "
     "endif -%}"
     "{{- '    [|' + m['role'] + '|]' + m['content'] + '\\n        '"
     " + ('' if m['role'] == 'user' else '[|endofturn|]') + '\\n\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '    [|assistant|]\\n' -}}{%- endif -%}"},
    {"llama3",
     "{%- for m in messages -%}"
     "{{- (bos_token if loop.first else '') + '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n'"
     " + m['content'] | trim + '<|eot_id|>\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif "
     "-%}"},
    {"mistral",
     "{%- set has_system = messages[0]['role'] == 'system' -%}"
     "{%- set turns = messages[1:] if has_system else messages -%}"
     "{{- bos_token -}}"
     "{%- for m in turns -%}"
     "{%- if m['role'] != ('assistant' if loop.index0 % 2 else 'user') -%}"
     "{{- raise_exception('the roles must be user and assistant in turn, after at most one system message') "
     "-}}"
     "{%- endif -%}"
     "{%- if m['role'] == 'user' -%}"
     "{%- set before = messages[0]['content'] + '\\n\\n' if loop.first and has_system else '' -%}"
     "{{- ' [INST] ' + before + m['content'] + ' [/INST]' -}}"
     "{%- else -%}"
     "{{- ' ' + m['content'] + eos_token -}}"
     "{%- endif -%}"
     "{%- endfor -%}"},
}};

// The key's value is a text, or a list of {name, template}.
std::optional<std::string> TemplateIn(const OrderedJson& tokenizer_config) {
  if (!tokenizer_config.is_object()) return std::nullopt;
  const auto found = tokenizer_config.find("chat_template");
  if (found == tokenizer_config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const OrderedJson& entry : *found) {
    const bool is_default = entry.is_object() && entry.value("name", OrderedJson()) == "default" &&
                            entry.contains("template") && entry["template"].is_string();
    if (is_default) return entry["template"].get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> BuiltInTemplateNames() {
  std::vector<std::string> names;
  for (const NamedTemplate& known : kBuiltIn)
    names.emplace_back(known.name);
  return names;
}

std::optional<std::string> BuiltInTemplate(const std::string& name) {
  const auto* const found =
      std::find_if(kBuiltIn.begin(), kBuiltIn.end(), [&](const NamedTemplate& t) { return t.name == name; });
  return found == kBuiltIn.end() ? std::nullopt : std::optional<std::string>(found->text);
}

Result<std::optional<std::string>> ChatTemplateOf(const Checkpoint& checkpoint) {
  auto jinja = MP_TRY(checkpoint.ReadSideFile(kTemplateName));
  if (jinja) return jinja;
  const auto text = MP_TRY(checkpoint.ReadSideFile(kTokenizerConfigName));
  if (!text) return std::optional<std::string>();
  return TemplateIn(MP_TRY(ParseOrderedJson(*text, checkpoint.name() + "/" + kTokenizerConfigName)));
}

OrderedJson WithChatTemplate(OrderedJson tokenizer_config, const std::string& chat_template) {
  if (tokenizer_config.is_object()) tokenizer_config["chat_template"] = chat_template;
  return tokenizer_config;
}

bool HoldsChatTemplates(const std::string& side_file) {
  return side_file == kTemplateName || side_file == "chat_template.json" ||
         StartsWith(side_file, "additional_chat_templates/");
}

}  // namespace mergepipe
