// The most groups of experts that routers choose among.
#pragma once

#include <cstdint>

namespace tl {
namespace router {

constexpr std::int64_t kMaxGroups = 1024;

}  // namespace router
}  // namespace tl
