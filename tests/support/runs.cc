#include "support/runs.h"

#include "base/try.h"
#include "support/files.h"

namespace mergepipe::tests {

Result<Ran> RunPlan(const Planned& planned, EngineOptions options,
                    std::vector<std::optional<TensorRecord>> finished) {
  const TempFolder folder;
  if (options.kernels == nullptr) options.kernels = MP_TRY(kernels::ChooseKernels(""));
  finished.resize(planned.plan.merge->tensors.size());
  const auto staging = MP_TRY(Staging::Open(folder / "out", false, *planned.ledger));
  EngineResult result =
      MP_TRY(RunEngine(planned.plan, options, std::move(finished), *staging, *planned.ledger));
  return Ran{ReadTree(staging->folder()), std::move(result)};
}

std::map<std::string, StoredTensor> TensorsOf(const Planned& planned, const Ran& ran) {
  std::map<std::string, StoredTensor> tensors;
  for (const Unit& unit : planned.plan.units) {
    for (size_t i = 0; i < unit.tensors.size(); ++i) {
      const ResolvedTensor& tensor = planned.plan.merge->tensors[unit.tensors[i]];
      tensors[tensor.name] = {tensor.name, tensor.dtype, tensor.shape,
                              ran.files.at(unit.file_name).substr(unit.layout.offsets[i], tensor.bytes())};
    }
  }
  return tensors;
}

}  // namespace mergepipe::tests
