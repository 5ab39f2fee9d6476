#include "methods/method.h"

#include "mergepipe/mergepipe.h"

namespace mergepipe {

#define MERGEPIPE_METHOD(name) const Method& Method_##name();
#include "method_table.inc"
#undef MERGEPIPE_METHOD

const std::vector<const Method*>& AllMethods() {
  static const std::vector<const Method*> methods = {
#define MERGEPIPE_METHOD(name) &Method_##name(),
#include "method_table.inc"
#undef MERGEPIPE_METHOD
  };
  return methods;
}

const Method* FindMethod(const std::string& name) {
  for (const Method* method : AllMethods()) {
    if (method->name == name) return method;
  }
  return nullptr;
}

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const Method* method : AllMethods())
    names.push_back(method->name);
  return names;
}

}  // namespace mergepipe
