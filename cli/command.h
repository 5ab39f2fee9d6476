#pragma once

#include <map>
#include <string>
#include <vector>

#include "mergepipe/mergepipe.h"

namespace mergepipe::cli {

/// What a person typed, by flag ("--threads") or positional ("OUT").
class Arguments {
 public:
  std::map<std::string, std::vector<std::string>> values;

  bool Has(const std::string& name) const { return values.count(name) > 0; }
  std::string Get(const std::string& name) const { return Has(name) ? values.at(name).back() : ""; }
  std::vector<std::string> All(const std::string& name) const {
    return Has(name) ? values.at(name) : std::vector<std::string>{};
  }
};

struct FlagSpec {
  std::string name;     ///< "--threads"
  std::string aliases;  ///< "-j,--num-threads"
  std::string value;    ///< name of its value in the help ("N"); "" for a switch
  std::string help;
  std::string environment;  ///< variable that sets it, or ""
  bool repeated = false;
  std::vector<std::string> choices;  ///< the only values that there are; empty: it takes others
  bool negatable =
      false;          ///< a switch with a form "--no-…", under whose name it is stored where that came last
  std::string group;  ///< heading in the help; "": the usual one
};

struct PositionalSpec {
  std::string name;
  std::string help;
  bool required = true;
  bool repeated = false;             ///< takes all words that follow
  std::vector<std::string> choices;  ///< as of a flag
};

/// One command: parsing, help, man page and completion all come from this record.
struct Command {
  std::string name;
  std::string summary;
  std::vector<PositionalSpec> positionals;
  std::vector<FlagSpec> flags;
  std::vector<std::string> examples;
  std::string exit_statuses;
  int (*run)(const Arguments&) = nullptr;
};

const Command& MergeCommand();
const Command& PlanCommand();
const Command& RunPlanCommand();
const Command& ExplainCommand();
const Command& SweepCommand();
const Command& InspectCommand();
const Command& DiffCommand();
const Command& VerifyCommand();
const Command& ReplayCommand();
const Command& MethodsCommand();
const Command& AnalyzeCommand();
const Command& CatalogCommand();
const Command& CompletionCommand();
const Command& HelpCommand();

/// All of them, in the order of the help.
const std::vector<const Command*>& AllCommands();
/// What the program does, after its name.
extern const char* const kProgramSummary;

struct ExitStatusSpec {
  const char* status;
  const char* meaning;
};
/// The exit statuses of all commands together.
const std::vector<ExitStatusSpec>& AllStatuses();

/// "--no-quiet" of "--quiet".
std::string NegativeOf(const std::string& name);
/// All spellings of a flag: "-o", "--output"; "--quiet", "--no-quiet".
std::vector<std::string> SpellingsOf(const FlagSpec& flag);

/// True when the words of a command line ask for JSON, whether or not the rest of them make sense.
bool AsksForJson(int argc, char** argv);

/// Parses a command line, runs its command and returns the exit status.
int RunCommandLine(int argc, char** argv);

}  // namespace mergepipe::cli
