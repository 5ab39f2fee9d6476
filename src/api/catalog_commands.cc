#include <algorithm>
#include <filesystem>

#include "api/open_model.h"
#include "base/text.h"
#include "base/try.h"
#include "catalog/catalog.h"
#include "mergepipe/mergepipe.h"
#include "report/analyze_report.h"

namespace mergepipe {
namespace {

constexpr size_t kLeastDigits = 6;

Result<std::unique_ptr<Catalog>> OpenNamed(const std::string& catalog, bool for_writing) {
  const std::string path = CatalogPath(catalog);
  auto opened = MP_TRY(Catalog::OpenExisting(path));
  if (opened == nullptr)
    return Fail(Code::kInvalidInput,
                Format("{}: there is no catalog yet; mergepipe analyze makes one", path));
  if (!for_writing) return opened;
  opened.reset();
  return Catalog::OpenForWriting(path);
}

// The entry that a person means: by a path where a checkpoint lies, by one where it lay, or by content.
Result<CatalogEntry> FindEntry(Catalog& catalog, const std::string& model) {
  Ledger ledger;
  const auto checkpoint = OpenModel(model, ledger);
  std::optional<KnownCheckpoint> known;
  if (checkpoint) known = MP_TRY(catalog.Find(**checkpoint));
  std::error_code error;
  const std::string place = std::filesystem::absolute(model, error).lexically_normal().string();
  std::vector<CatalogEntry> matches;
  const auto entries = MP_TRY(catalog.List());
  for (const CatalogEntry& entry : entries) {
    const bool by_digits = model.size() >= kLeastDigits && StartsWith(entry.content, model);
    const bool by_path = !checkpoint && std::count(entry.paths.begin(), entry.paths.end(), place) > 0;
    if (known ? entry.id == known->id : by_digits || by_path) matches.push_back(entry);
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty()) {
    return Fail(Code::kInvalidInput,
                Format("{}: the catalog {} does not know it{}; see mergepipe catalog list", model,
                       catalog.path(), checkpoint ? " as it is now" : ""));
  }
  return Fail(Code::kUsage, Format("{}: means {} checkpoints; give more digits", model, matches.size()));
}

}  // namespace

Result<Report> CatalogList(const std::string& catalog) {
  const auto opened = MP_TRY(OpenNamed(catalog, false));
  const auto entries = MP_TRY(opened->List());
  return Report{
      JsonText(CatalogListJson(opened->path(), entries)), CatalogListText(opened->path(), entries), {}};
}

Result<Report> CatalogShow(const std::string& model, const std::string& catalog) {
  const auto opened = MP_TRY(OpenNamed(catalog, false));
  const CatalogEntry entry = MP_TRY(FindEntry(*opened, model));
  const auto tensors = MP_TRY(opened->Tensors(entry.id));
  return Report{JsonText(CatalogShowJson(entry, tensors)), CatalogShowText(entry), {}};
}

Result<Report> CatalogForget(const std::string& model, const std::string& catalog) {
  auto opened = MP_TRY(OpenNamed(catalog, true));
  const CatalogEntry entry = MP_TRY(FindEntry(*opened, model));
  const CatalogRemoval removal = MP_TRY(opened->Forget(entry.id));
  const std::string path = opened->path();
  opened.reset();
  return Report{JsonText(CatalogRemovalJson(path, removal)), CatalogRemovalText(path, removal), {}};
}

Result<Report> CatalogGc(const std::string& catalog) {
  auto opened = MP_TRY(OpenNamed(catalog, true));
  const CatalogRemoval removal = MP_TRY(opened->CollectGarbage());
  const std::string path = opened->path();
  opened.reset();
  return Report{JsonText(CatalogRemovalJson(path, removal)), CatalogRemovalText(path, removal), {}};
}

}  // namespace mergepipe
