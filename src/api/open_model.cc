#include "api/open_model.h"

#include <filesystem>

#include "base/text.h"
#include "base/try.h"
#include "format/hub_cache.h"

namespace mergepipe {

Result<std::unique_ptr<Checkpoint>> OpenModel(const std::string& model, Ledger& ledger) {
  std::error_code error;
  if (std::filesystem::exists(model, error)) return Checkpoint::Open(model, model, ledger);
  const size_t at = model.find('@');
  const HubModel wanted{model.substr(0, at), at == std::string::npos ? "" : model.substr(at + 1)};
  const auto folders = HubCacheFolders({});
  const auto found = MP_TRY(FindInHubCache(wanted, folders));
  if (found) return Checkpoint::Open(*found, model, ledger);
  const std::string advice = wanted.Advice(folders);
  if (advice.empty()) return Checkpoint::Open(model, model, ledger);  // which says what is wrong
  return Fail(Code::kInvalidInput, Format("{}: is no file or folder here{}", model, advice));
}

}  // namespace mergepipe
