#pragma once

#include <gmock/gmock.h>

#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>

#include "mergepipe/result.h"

namespace mergepipe {

/// How a failed expectation shows a Result.
template <typename T>
void PrintTo(const Result<T>& result, std::ostream* out) {
  *out << (result.has_value() ? "a value" : "an error");
}

}  // namespace mergepipe

namespace mergepipe::tests {

/// All that an error says: its message and every fault, one line each.
inline std::string Told(const Error& error) {
  std::string text = error.message;
  for (const std::string& fault : error.faults)
    text += "\n" + fault;
  return text;
}

/// The value of a Result that must have one; an error fails the test.
template <typename T>
T Must(Result<T> result) {
  if (!result.has_value()) throw std::runtime_error("unexpected error: " + Told(result.error()));
  return std::move(result).value();
}
inline void Must(const Result<void>& result) {
  if (!result.has_value()) throw std::runtime_error("unexpected error: " + Told(result.error()));
}

/// Matches a Result that failed with this code and whose message or faults hold `text`.
MATCHER_P2(FailsWith, code, text, std::string("fails with ") + CodeName(code) + " and says '" + text + "'") {
  if (arg.has_value()) {
    *result_listener << "it succeeded";
    return false;
  }
  *result_listener << CodeName(arg.error().code) << ": " << Told(arg.error());
  return arg.error().code == code && Told(arg.error()).find(text) != std::string::npos;
}

/// Matches a Result that has a value.
MATCHER(Succeeds, "succeeds") {
  if (!arg.has_value()) *result_listener << CodeName(arg.error().code) << ": " << Told(arg.error());
  return arg.has_value();
}

}  // namespace mergepipe::tests
