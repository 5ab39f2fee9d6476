#include "api/output_form.h"

namespace mergepipe {

Json OutputFormJson(const OutputForm& form) {
  return {{"shard_bytes", form.shard_bytes ? Json(*form.shard_bytes) : Json()},
          {"copies_tokenizer", form.copies_tokenizer},
          {"writes_card", form.writes_card}};
}

OutputForm OutputFormFrom(const Json& json) {
  OutputForm form{.copies_tokenizer = json.at("copies_tokenizer"), .writes_card = json.at("writes_card")};
  const Json& bytes = json.at("shard_bytes");
  if (!bytes.is_null()) form.shard_bytes = bytes.get<uint64_t>();
  return form;
}

}  // namespace mergepipe
