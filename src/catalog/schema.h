#pragma once

#include <memory>
#include <string>

#include "catalog/sqlite.h"

namespace mergepipe {

/// The layout of tables that this version reads and writes.
inline constexpr int64_t kCatalogVersion = 1;

/// Opens a catalog that exists, read-only where its file or folder is; null where there is none. Creates
/// nothing that stays. Fails as Database::Open does, and with kInvalidInput on a file of something else or of
/// a newer version.
Result<std::unique_ptr<Database>> OpenCatalogForReading(const std::string& path);

/// Opens a catalog or makes one, folders included.
Result<std::unique_ptr<Database>> OpenCatalogForWriting(const std::string& path);

}  // namespace mergepipe
