#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "command.h"
#include "terminal.h"

namespace mergepipe::cli {
namespace {

std::string Footer(const Command& command) {
  std::string text = "\nexamples:\n";
  for (const std::string& example : command.examples)
    text += "  " + example + "\n";
  return text + "\nexit status:\n" + command.exit_statuses;
}

std::string StatusesText() {
  constexpr size_t kWidth = 120;
  std::string text = "\nexit status:";
  size_t line = 0;
  for (const ExitStatusSpec& status : AllStatuses()) {
    const std::string item = std::string(status.status) + " " + status.meaning;
    const bool is_first = text.back() == ':';
    const bool fits = is_first || text.size() - line + item.size() + 2 <= kWidth;
    text += is_first ? " " : fits ? "; " : ";\n";
    if (!fits) line = text.size();
    text += item;
  }
  return text;
}

// What CLI11 fills while it parses.
struct Parsed {
  const Command* command = nullptr;
  CLI::App* app = nullptr;
  std::map<std::string, std::string> positionals;
  std::map<std::string, std::vector<std::string>> lists;  // positionals that take all words
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, const CLI::Option*> switches;
};

// Without the value that CLI11 shows behind the name of a negative form.
class PlainNames : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string text = CLI::Formatter::make_option_name(option, is_positional);
    const std::string value = "{false}";
    const size_t at = text.find(value);
    return at == std::string::npos ? text : text.erase(at, value.size());
  }
};

void AddSwitch(const FlagSpec& flag, const std::string& names, Parsed& parsed) {
  CLI::Option* option =
      parsed.app->add_flag(flag.negatable ? names + ",!" + NegativeOf(flag.name) : names, flag.help);
  if (!flag.group.empty()) option->group(flag.group);
  parsed.switches[flag.name] = option;
}

void AddFlag(const FlagSpec& flag, Parsed& parsed) {
  const std::string names = flag.aliases.empty() ? flag.name : flag.name + "," + flag.aliases;
  if (flag.value.empty()) return AddSwitch(flag, names, parsed);
  CLI::Option* option = parsed.app->add_option(names, parsed.values[flag.name], flag.help);
  if (!flag.group.empty()) option->group(flag.group);
  option->type_name(flag.value)->type_size(1)->expected(1);
  option->multi_option_policy(flag.repeated ? CLI::MultiOptionPolicy::TakeAll
                                            : CLI::MultiOptionPolicy::TakeLast);
  option->allow_extra_args(false);
  if (!flag.environment.empty()) option->envname(flag.environment);
}

void AddCommand(CLI::App& app, const Command& command, Parsed& parsed) {
  parsed.command = &command;
  parsed.app = app.add_subcommand(command.name, command.summary);
  for (const PositionalSpec& positional : command.positionals) {
    const std::string& name = positional.name;
    CLI::Option* option = positional.repeated
                              ? parsed.app->add_option(name, parsed.lists[name], positional.help)
                              : parsed.app->add_option(name, parsed.positionals[name], positional.help);
    option->type_name("")->required(positional.required);
  }
  for (const FlagSpec& flag : command.flags)
    AddFlag(flag, parsed);
  parsed.app->footer(Footer(command));
}

Arguments ArgumentsOf(const Parsed& parsed) {
  Arguments arguments;
  for (const auto& [name, values] : parsed.values) {
    if (!values.empty()) arguments.values[name] = values;
  }
  for (const auto& [name, word] : parsed.positionals) {
    if (!word.empty()) arguments.values[name] = {word};
  }
  for (const auto& [name, words] : parsed.lists) {
    if (!words.empty()) arguments.values[name] = words;
  }
  for (const auto& [name, option] : parsed.switches) {
    if (option->count() > 0) arguments.values[option->as<bool>() ? name : NegativeOf(name)] = {"1"};
  }
  return arguments;
}

// Edit distance would need the library's internals; a shared start is what mistyped commands have.
std::string NearestCommand(const std::vector<const Command*>& commands, const std::string& word) {
  for (const Command* command : commands) {
    size_t same = 0;
    while (same < word.size() && same < command->name.size() && word[same] == command->name[same])
      ++same;
    if (same >= 2) return " (did you mean '" + command->name + "'?)";
  }
  return "";
}

int ReportUsage(const std::vector<const Command*>& commands, const CLI::ParseError& error, int argc,
                char** argv) {
  std::string message = std::string("the command line is wrong: ") + error.what() + "; see mergepipe --help";
  const bool known = argc > 1 && std::any_of(commands.begin(), commands.end(),
                                             [&](const Command* c) { return c->name == argv[1]; });
  if (argc > 1 && !known && argv[1][0] != '-')
    message = std::string("there is no command '") + argv[1] + "'" + NearestCommand(commands, argv[1]) +
              "; see mergepipe --help";
  return Report(Error{Code::kUsage, message, {}}, AsksForJson(argc, argv));
}

}  // namespace

bool AsksForJson(int argc, char** argv) {
  return std::any_of(argv, argv + argc, [](const char* word) { return std::strcmp(word, "--json") == 0; });
}

int RunCommandLine(int argc, char** argv) {
  const std::vector<const Command*>& commands = AllCommands();
  CLI::App app(std::string("mergepipe ") + kProgramSummary, "mergepipe");
  app.require_subcommand(1);
  app.formatter(std::make_shared<PlainNames>());
  app.set_version_flag("--version", std::string("mergepipe ") + Version() + "\n" + BuildText());
  app.footer(StatusesText());
  std::vector<Parsed> parsed(commands.size());
  for (size_t i = 0; i < commands.size(); ++i)
    AddCommand(app, *commands[i], parsed[i]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // help and version
    return app.exit(done) == 0 ? 0 : 2;
  } catch (const CLI::ParseError& error) {
    return ReportUsage(commands, error, argc, argv);
  }
  for (const Parsed& p : parsed) {
    if (p.app->parsed()) return p.command->run(ArgumentsOf(p));
  }
  return 2;
}

}  // namespace mergepipe::cli
