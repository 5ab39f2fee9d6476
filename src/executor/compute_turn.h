#pragma once

#include <semaphore>

namespace mergepipe {

/// Holds one of the places for computing while it lives: workers are as many as storage likes, those that
/// compute at once as many as --threads says.
class ComputeTurn {
 public:
  explicit ComputeTurn(std::counting_semaphore<>& places) : places_(places) { places_.acquire(); }
  ~ComputeTurn() { places_.release(); }
  ComputeTurn(const ComputeTurn&) = delete;
  ComputeTurn& operator=(const ComputeTurn&) = delete;

 private:
  std::counting_semaphore<>& places_;
};

}  // namespace mergepipe
