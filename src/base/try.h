#pragma once

#include <string>
#include <utility>

#include "mergepipe/result.h"

/// Yields the value of a Result or returns its error from the enclosing function. One per statement.
#define MP_TRY(expression)                                                              \
  __extension__({                                                                       \
    auto mp_result = (expression);                                                      \
    if (!mp_result.has_value()) return ::mergepipe::Fail(std::move(mp_result).error()); \
    std::move(mp_result).value();                                                       \
  })

namespace mergepipe {

/// Adds one piece of context, outermost first: "reading shard 2: <message>".
template <typename T>
Result<T> During(Result<T> result, const std::string& context) {
  if (result.has_value()) return result;
  Error error = std::move(result).error();
  error.message = context + ": " + error.message;
  return Fail(std::move(error));
}

}  // namespace mergepipe
