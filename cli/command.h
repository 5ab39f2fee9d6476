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
  bool negatable =
      false;          ///< a switch with a form "--no-…", under whose name it is stored where that came last
  std::string group;  ///< heading in the help; "": the usual one
};

struct PositionalSpec {
  std::string name;
  std::string help;
  bool required = true;
  bool repeated = false;  ///< takes all words that follow
};

/// One command: help, parsing and (later) completion all come from this record.
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

/// True when the words of a command line ask for JSON, whether or not the rest of them make sense.
bool AsksForJson(int argc, char** argv);

/// Parses a command line, runs its command and returns the exit status.
int RunCommandLine(const std::vector<const Command*>& commands, int argc, char** argv);

}  // namespace mergepipe::cli
