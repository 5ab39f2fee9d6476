#pragma once

#include <string>

#include "command.h"
#include "mergepipe/mergepipe.h"

namespace mergepipe::cli {

/// Exit status of an error.
int ExitStatus(Code code);

/// Prints an error to stderr, one line for each fault, and with `json` as one object on stdout. Returns the
/// exit status.
int Report(const Error& error, bool json);

/// Prints a report: JSON or text on stdout, warnings on stderr. Returns 0.
int Report(const mergepipe::Report& report, const Arguments& arguments);

/// The flags that every long command has: --threads, --memory, --json, --quiet.
std::vector<FlagSpec> CommonFlags();
/// --catalog.
FlagSpec CatalogFlag();
/// Fills threads, memory, progress and stop flag from them. Fails with kUsage.
Result<RunOptions> RunOptionsOf(const Arguments& arguments);

/// Clears the progress line, if one stands.
void ClearProgressLine();

}  // namespace mergepipe::cli
