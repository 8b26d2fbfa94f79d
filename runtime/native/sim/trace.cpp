#include "trace.hpp"

#include <array>

namespace calrt::sim {

const char* name_of(ViolationKind kind) {
    static constexpr std::array names = {
#define X(name, about) #name,
        CALRTSIM_VIOLATIONS(X)
#undef X
    };
    return names[static_cast<std::size_t>(kind)];
}

}  // namespace calrt::sim
