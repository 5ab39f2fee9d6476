#include "terminal.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mergepipe::cli {
namespace {

std::atomic<int> stop_signal{0};
std::atomic<bool> progress_line_stands{false};

// The first signal asks to stop, the second ends the program.
void OnSignal(int signal) {
  stop_signal = signal;
  std::signal(signal, SIG_DFL);
}

void InstallSignals() {
  for (const int signal : {SIGINT, SIGTERM})
    std::signal(signal, OnSignal);
}

bool IsTerminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

void ShowProgress(const Progress& progress) {
  const double rate = progress.seconds > 0 ? static_cast<double>(progress.done_bytes) / progress.seconds : 0;
  const uint64_t left =
      progress.total_bytes > progress.done_bytes ? progress.total_bytes - progress.done_bytes : 0;
  const double seconds_left = rate > 0 ? static_cast<double>(left) / rate : 0;
  std::fprintf(stderr, "\r\033[K%s of %s, %s/s, %.0f s left", ByteCountText(progress.done_bytes).c_str(),
               ByteCountText(progress.total_bytes).c_str(),
               ByteCountText(static_cast<uint64_t>(rate)).c_str(), seconds_left);
  std::fflush(stderr);
  progress_line_stands = true;
}

}  // namespace

int ExitStatus(Code code) {
  switch (code) {
    case Code::kUsage:
    case Code::kInvalidInput:
    case Code::kUnsupported:
    case Code::kNoSpace:
      return 2;
    case Code::kDifference:
      return 3;
    case Code::kDiskFull:
    case Code::kTransient:
      return 75;
    case Code::kInterrupted:
      return stop_signal == SIGTERM ? 143 : 130;
    case Code::kIo:
    case Code::kInternal:
      return 1;
  }
  return 1;
}

void ClearProgressLine() {
  if (progress_line_stands.exchange(false)) std::fprintf(stderr, "\r\033[K");
}

int Report(const Error& error, bool json) {
  ClearProgressLine();
  std::fprintf(stderr, "mergepipe: %s\n", error.message.c_str());
  for (const std::string& fault : error.faults)
    std::fprintf(stderr, "  %s\n", fault.c_str());
  if (json) std::printf("%s\n", ErrorJson(error).c_str());
  return ExitStatus(error.code);
}

int Report(const mergepipe::Report& report, const Arguments& arguments) {
  ClearProgressLine();
  for (const std::string& warning : report.warnings)
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  if (arguments.Has("--json")) {
    std::printf("%s\n", report.json.c_str());
  } else if (!arguments.Has("--quiet")) {
    std::fputs(report.text.c_str(), stdout);
  }
  return 0;
}

std::vector<FlagSpec> CommonFlags() {
  return {{.name = "--threads",
           .aliases = "-j,--num-threads",
           .value = "N",
           .help = "threads that compute at the same time; default as many as there are cores",
           .environment = "MERGEPIPE_THREADS"},
          {.name = "--memory",
           .value = "SIZE",
           .help = "limit for buffers; default the smaller of 2GiB and a quarter of the RAM",
           .environment = "MERGEPIPE_MEMORY"},
          {.name = "--json",
           .value = "",
           .help = "print one JSON object on stdout, on failure too",
           .environment = ""},
          {.name = "--quiet", .help = "print nothing but errors and warnings", .negatable = true}};
}

FlagSpec CatalogFlag() {
  return {.name = "--catalog",
          .value = "FILE",
          .help = "where the catalog lies; default $XDG_CACHE_HOME/mergepipe/catalog.db",
          .environment = "MERGEPIPE_CATALOG"};
}

Result<RunOptions> RunOptionsOf(const Arguments& arguments) {
  RunOptions options;
  if (arguments.Has("--threads")) {
    char* end = nullptr;
    const std::string text = arguments.Get("--threads");
    const long threads = std::strtol(text.c_str(), &end, 10);
    if (*end != '\0' || threads < 1 || threads > 1024)
      return Fail(Code::kUsage,
                  "--threads (or MERGEPIPE_THREADS): '" + text + "' is no number from 1 to 1024");
    options.threads = static_cast<size_t>(threads);
  }
  if (arguments.Has("--memory")) {
    auto bytes = ParseByteCount(arguments.Get("--memory"));
    if (!bytes) return Fail(Code::kUsage, "--memory (or MERGEPIPE_MEMORY): " + bytes.error().message);
    if (*bytes == 0) return Fail(Code::kUsage, "--memory (or MERGEPIPE_MEMORY): 0 is no limit to work in");
    options.memory_bytes = *bytes;
  }
  InstallSignals();
  options.stop_signal = &stop_signal;
  if (IsTerminal() && !arguments.Has("--quiet")) options.on_progress = ShowProgress;
  return options;
}

}  // namespace mergepipe::cli
