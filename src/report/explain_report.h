#pragma once

#include <string>

#include "report/explanation.h"

namespace mergepipe {

/// What is read and what is left out, as a whole and by expert, layer and tensor. docs/cli.md lists the keys.
Json ExplainReportJson(const Explanation& explanation);
/// The same for people: of the tensors only those that lose most. `path` is what was explained.
std::string ExplainReportText(const Explanation& explanation, const std::string& path);

/// Why the blocks of one tensor are read or left out.
Json WhyJson(const Explanation& explanation, const ExplainedTensor& tensor);
std::string WhyText(const Explanation& explanation, const ExplainedTensor& tensor);

/// The tensor of this name. Fails with kUsage, naming the nearest.
Result<const ExplainedTensor*> FindTensor(const Explanation& explanation, const std::string& name);

/// Thresholds of a tensor as JSON, with their models.
Json ThresholdsJson(const Explanation& explanation, const ExplainedTensor& tensor);

/// What is known of the experts, in words.
std::string KnowledgeText(Strength strength);

/// What one byte brings: `energy` over `bytes`; nothing where there are none.
std::optional<double> GainPerByte(double energy, uint64_t bytes);

}  // namespace mergepipe
