#include "terminal.h"

namespace mergepipe::cli {
namespace {

Result<mergepipe::Report> Perform(const Arguments& arguments) {
  const std::string action = arguments.Get("ACTION");
  const std::string catalog = arguments.Get("--catalog");
  const bool takes_model = action == "show" || action == "forget";
  if (takes_model != arguments.Has("MODEL")) {
    return Fail(Code::kUsage, "catalog " + action + (takes_model ? " needs a MODEL" : " takes no MODEL") +
                                  "; see mergepipe catalog --help");
  }
  if (action == "list") return CatalogList(catalog);
  if (action == "show") return CatalogShow(arguments.Get("MODEL"), catalog);
  if (action == "forget") return CatalogForget(arguments.Get("MODEL"), catalog);
  if (action == "gc") return CatalogGc(catalog);
  return Fail(Code::kUsage, "catalog: '" + action + "' is none of list, show, forget and gc");
}

int Run(const Arguments& arguments) {
  auto report = Perform(arguments);
  return report ? Report(*report, arguments) : Report(report.error(), arguments.Has("--json"));
}

}  // namespace

const Command& CatalogCommand() {
  static const Command command = {
      .name = "catalog",
      .summary = "list, show or forget what is known about checkpoints",
      .positionals =
          {{"ACTION",
            "list: all checkpoints; show: one; forget: remove one; gc: remove those that were deleted or "
            "changed since",
            true,
            false,
            {"list", "show", "forget", "gc"}},
           {"MODEL", "of show and forget: a path, or digits that its content begins with", false}},
      .flags = {CatalogFlag(),
                {.name = "--json",
                 .value = "",
                 .help = "print one JSON object on stdout, on failure too",
                 .environment = ""},
                {.name = "--quiet",
                 .value = "",
                 .help = "print nothing but errors and warnings",
                 .environment = ""}},
      .examples = {"mergepipe catalog list", "mergepipe catalog show experts/math",
                   "mergepipe catalog forget 3fa94c2b", "mergepipe catalog gc"},
      .exit_statuses =
          "  0  done\n  1  failed while running\n  2  the request or the catalog is wrong, or it does not "
          "know MODEL\n  75  "
          "the catalog is locked; try again",
      .run = Run,
  };
  return command;
}

}  // namespace mergepipe::cli
