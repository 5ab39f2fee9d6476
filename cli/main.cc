#include <sys/resource.h>

#include <cstdio>
#include <exception>

#include "command.h"
#include "terminal.h"

namespace {

// Twenty experts of sixty shards are more open files than the usual soft limit allows.
void RaiseOpenFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // else the usual limit holds, and opening says so
}

// What was printed must have arrived: a full disk behind stdout is a failure too.
int Flushed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "mergepipe: writing to stdout failed\n");
  return status == 0 ? 1 : status;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace mergepipe::cli;
  RaiseOpenFileLimit();
  try {
    return Flushed(RunCommandLine(argc, argv));
  } catch (const std::exception& error) {  // the standard library ran out of memory, or a bug
    return Report(mergepipe::Error{mergepipe::Code::kInternal, error.what(), {}}, AsksForJson(argc, argv));
  }
}
