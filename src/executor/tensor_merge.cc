#include "executor/tensor_merge.h"

#include <algorithm>

namespace mergepipe {

TensorMerge::TensorMerge(const Plan& plan, size_t tensor, const kernels::Kernels& kernels)
    : merge_(*plan.merge), tensor_(plan.merge->tensors[tensor]) {
  if (IsMergeable(tensor_.dtype)) compute_ = std::make_unique<ItemCompute>(merge_, tensor_, kernels);
  statistics_.thresholds.resize(tensor_.inputs.size());
  if (plan.constants[tensor]) statistics_ = *plan.constants[tensor];
  if (!tensor_.merged || tensor_.elements == 0) return;
  if (plan.tensors[tensor].rounds > 0)
    collector_ =
        std::make_unique<StatisticsCollector>(tensor_.request, tensor_.inputs.size(), tensor_.elements);
  if (collector_ == nullptr) Prepare();
}

void TensorMerge::FinishRound() {
  collector_->FinishRound();
  turns_.Restart();
  if (collector_->round() < collector_->rounds()) return;
  statistics_ = collector_->Statistics();
  collector_.reset();
  Prepare();
}

void TensorMerge::Prepare() {
  constants_ = merge_.method->prepare(tensor_.facts, merge_.params[tensor_.params], statistics_);
  cuts_ = statistics_.Cuts();
  cuts_among_equals_ =
      std::any_of(cuts_.begin(), cuts_.end(), [](const Threshold& cut) { return cut.CutsAmongEquals(); });
}

}  // namespace mergepipe
