#include "txn/journal.h"

#include <fcntl.h>

#include <map>

#include "base/digest.h"
#include "base/text.h"
#include "base/try.h"
#include "planner/blocks.h"
#include "storage/source.h"
#include "txn/digest_tree.h"
#include "txn/manifest.h"

namespace mergepipe {
namespace {

// What a journal belongs to: the plan, and the very files that it read. Plans know headers only, so that an
// input rewritten meanwhile must show here.
Json Heading(const Plan& plan) {
  Json stamps = Json::array();
  for (const ResolvedModel& model : plan.merge->models) {
    for (const Shard& shard : model.checkpoint->shards()) {
      const FileStamp& stamp = shard.source->Stamp();
      stamps.push_back({stamp.device, stamp.inode, stamp.size, stamp.mtime_ns, stamp.ctime_ns});
    }
  }
  return {{"plan_digest", plan.digest}, {"inputs", stamps}};
}

constexpr uint64_t kMaxJournalBytes = 1u << 30;

// The digest of a tensor as it stands in a file, read piece by piece.
Result<std::string> DigestStored(const Source& source, uint64_t offset, uint64_t bytes, uint64_t leaf_bytes) {
  const uint64_t piece = leaf_bytes * kLeavesPerChunk;
  std::string buffer(Source::BufferBytes(piece), '\0');
  DigestTree tree((bytes + leaf_bytes - 1) / leaf_bytes);
  for (uint64_t at = 0; at < bytes; at += piece) {
    const uint64_t size = std::min(piece, bytes - at);
    const auto range = MP_TRY(source.Read(offset + at, size, std::as_writable_bytes(std::span(buffer))));
    tree.Set(at / leaf_bytes, {range.data, size}, leaf_bytes);
  }
  return tree.Root();
}

Json LedgerLine(const Ledger& ledger) {
  Json accounts = Json::array();
  for (size_t i = 0; i < ledger.Accounts(); ++i) {
    accounts.push_back(
        {{"base", ledger.Read(i, Purpose::kBaseData)}, {"alignment", ledger.Read(i, Purpose::kAlignment)}});
  }
  return {{"accounts", accounts}, {"written", ledger.Written()}};
}

// Bytes moved by the runs before.
struct LedgerState {
  struct Account {
    uint64_t base = 0, alignment = 0;
  };
  std::vector<Account> accounts;
  uint64_t written = 0;
};

// A finished tensor.
struct JournalLine {
  std::string tensor;
  TensorRecord record;
  LedgerState ledger;
};

// Nothing where the text is no such line: cut short by an interruption, or not ours.
std::optional<JournalLine> ReadLine(std::string_view text, const std::string& folder) {
  const auto json = ParseJson(text, folder);
  if (!json) return std::nullopt;
  try {
    JournalLine line{json->at("tensor"), RecordFromJson(json->at("record")), {}};
    for (const Json& account : json->at("ledger").at("accounts"))
      line.ledger.accounts.push_back({account.at("base"), account.at("alignment")});
    line.ledger.written = json->at("ledger").at("written");
    return line;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

// What the whole lines of a journal say.
struct JournalText {
  std::map<std::string, TensorRecord> records;  // by tensor
  LedgerState ledger;
  size_t bytes = 0;  // of those lines
};

Result<JournalText> ReadLines(std::string_view text, const Json& heading, const std::string& folder) {
  JournalText read;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', read.bytes)) {
    const std::string_view line = text.substr(read.bytes, end - read.bytes);
    if (read.bytes == 0) {
      const auto found = ParseJson(line, folder);
      if (!found) break;
      if (*found != heading) {
        return Fail(Code::kUsage,
                    Format("{}: belongs to another merge, or an input was changed meanwhile; run "
                           "without --resume to begin anew",
                           folder));
      }
    } else {
      auto finished = ReadLine(line, folder);
      if (!finished) break;
      read.records[finished->tensor] = std::move(finished->record);
      read.ledger = std::move(finished->ledger);
    }
    read.bytes = end + 1;
  }
  return read;
}

// A resumed merge carries its ledger on. Expert data is charged once: what the earlier run had read of
// tensors that it did not finish is read again, as a retry.
void CarryOn(const LedgerState& state, Ledger& ledger) {
  for (size_t i = 0; i < state.accounts.size() && i < ledger.Accounts(); ++i) {
    ledger.Charge(i, Purpose::kBaseData, state.accounts[i].base);
    ledger.Charge(i, Purpose::kAlignment, state.accounts[i].alignment);
  }
  ledger.ChargeWrite(state.written);
}

}  // namespace

Result<std::unique_ptr<Journal>> Journal::Open(Staging& staging, const Plan& plan, Ledger& ledger) {
  const std::string path = staging.folder() + "/" + kJournalName;
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.is_open())
    return Fail(WriteCode(errno), Format("{}: can not be created: {}", path, SystemText(errno)));
  std::unique_ptr<Journal> journal(new Journal(path, std::move(file)));
  journal->finished_.resize(plan.merge->tensors.size());
  if (staging.resumed()) MP_TRY(journal->Load(staging, plan, ledger));
  if (!staging.resumed()) MP_TRY(journal->AppendLine(Heading(plan).dump()));
  return journal;
}

Result<void> Journal::Load(Staging& staging, const Plan& plan, Ledger& ledger) {
  const std::string text = MP_TRY(ReadSmallFile(path_, kMaxJournalBytes));
  const JournalText read = MP_TRY(ReadLines(text, Heading(plan), staging.folder()));
  // A line that was cut short must not become the start of the next one.
  if (::ftruncate(file_.get(), static_cast<off_t>(read.bytes)) != 0)
    return Fail(Code::kIo, Format("{}: {}", path_, SystemText(errno)));
  if (read.bytes == 0) return AppendLine(Heading(plan).dump());
  CarryOn(read.ledger, ledger);
  for (const Unit& unit : plan.units) {
    const std::string path = staging.folder() + "/" + unit.file_name;
    const auto source = OpenLocalSource(path, path);
    if (!source || (*source)->Size() != unit.layout.file_size) continue;
    for (size_t i = 0; i < unit.tensors.size(); ++i) {
      const size_t t = unit.tensors[i];
      const ResolvedTensor& tensor = plan.merge->tensors[t];
      const auto record = read.records.find(tensor.name);
      if (record == read.records.end()) continue;
      const std::string digest =
          MP_TRY(DigestStored(**source, unit.layout.offsets[i], tensor.bytes(), OutputLeafBytes(plan, t)));
      if (digest != record->second.digest) continue;
      finished_[t] = record->second;
      for (size_t s = 0; s < tensor.sources.size(); ++s)
        ledger.Charge(plan.merge->models[tensor.sources[s].model].checkpoint->account(), Purpose::kExpertData,
                      ExpertBytes(plan, t, s));
      ++entries_;
    }
  }
  return {};
}

Result<void> Journal::AppendLine(const std::string& line) {
  return AppendText(file_.get(), line + "\n", path_);
}

Result<void> Journal::Add(const std::string& tensor, const TensorRecord& record, const Ledger& ledger) {
  ++entries_;
  return AppendLine(
      Json{{"tensor", tensor}, {"record", RecordToJson(record)}, {"ledger", LedgerLine(ledger)}}.dump());
}

Result<void> Journal::Remove() {
  if (::unlink(path_.c_str()) != 0)
    return Fail(Code::kIo, Format("{}: can not be removed: {}", path_, SystemText(errno)));
  return {};
}

}  // namespace mergepipe
