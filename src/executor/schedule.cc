#include "executor/schedule.h"

namespace mergepipe {
namespace {

class ScheduleMaker {
 public:
  ScheduleMaker(const Plan& plan, const std::vector<bool>& finished) : plan_(plan), finished_(finished) {}

  std::vector<Segment> Run() {
    for (const Unit& unit : plan_.units) {
      for (const size_t tensor : unit.tensors) {
        if (!finished_[tensor]) AddTensor(tensor);
      }
    }
    Flush();
    return std::move(segments_);
  }

 private:
  void AddTensor(size_t tensor) {
    Segment first{.tensor = tensor, .phase = 0};
    if (plan_.tensors[tensor].resident) {
      first.arena = residents_.size() % 2;
      if (residents_.size() >= 2) first.waits_for = residents_[residents_.size() - 2];
      residents_.push_back(tensor);
    }
    segments_.push_back(first);
    Flush();
    for (size_t phase = 1; phase <= plan_.tensors[tensor].rounds; ++phase)
      rest_.push_back({.tensor = tensor, .phase = phase, .arena = first.arena});
  }

  void Flush() {
    segments_.insert(segments_.end(), rest_.begin(), rest_.end());
    rest_.clear();
  }

  const Plan& plan_;
  const std::vector<bool>& finished_;
  std::vector<Segment> segments_;
  std::vector<Segment> rest_;  // later passes of the tensor before
  std::vector<size_t> residents_;
};

}  // namespace

std::vector<Segment> MakeSchedule(const Plan& plan, const std::vector<bool>& finished) {
  return ScheduleMaker(plan, finished).Run();
}

}  // namespace mergepipe
