#include <exception>

#include "command.h"
#include "terminal.h"

int main(int argc, char** argv) {
  using namespace mergepipe::cli;
  try {
    return RunCommandLine({&MergeCommand(), &PlanCommand(), &InspectCommand(), &DiffCommand(),
                           &VerifyCommand(), &ReplayCommand(), &MethodsCommand()},
                          argc, argv);
  } catch (const std::exception& error) {  // the standard library ran out of memory, or a bug
    return Report(mergepipe::Error{mergepipe::Code::kInternal, error.what(), {}}, false);
  }
}
