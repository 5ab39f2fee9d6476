#include <sstream>

#include "command.h"

namespace mergepipe::cli {

const char* const kProgramSummary =
    "merges language-model checkpoints: from as many expert bytes as you allow, in bounded memory, all or "
    "nothing, replayable byte for byte.";

const std::vector<ExitStatusSpec>& AllStatuses() {
  static const std::vector<ExitStatusSpec> statuses = {
      {"0", "done"},
      {"1", "failed while running"},
      {"2", "the request or an input is wrong, nothing was published"},
      {"3", "verification found a difference"},
      {"75", "failed midway for a reason that may pass, try again"},
      {"130 and 143", "interrupted, continue with --resume"}};
  return statuses;
}

const std::vector<const Command*>& AllCommands() {
  static const std::vector<const Command*> commands = {
      &MergeCommand(),   &PlanCommand(),    &RunPlanCommand(),    &ExplainCommand(), &SweepCommand(),
      &AnalyzeCommand(), &CatalogCommand(), &InspectCommand(),    &DiffCommand(),    &VerifyCommand(),
      &ReplayCommand(),  &MethodsCommand(), &CompletionCommand(), &HelpCommand()};
  return commands;
}

std::string NegativeOf(const std::string& name) {
  return "--no-" + name.substr(2);
}

std::vector<std::string> SpellingsOf(const FlagSpec& flag) {
  std::vector<std::string> spellings;
  std::istringstream words(flag.name + "," + flag.aliases);
  for (std::string word; std::getline(words, word, ',');)
    spellings.push_back(word);
  if (flag.negatable) spellings.push_back(NegativeOf(flag.name));
  return spellings;
}

}  // namespace mergepipe::cli
