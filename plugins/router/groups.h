// The most groups of experts that a router may have.
#pragma once

#include <cstdint>

namespace tl {
namespace router {

constexpr std::int64_t kMaxGroups = 1024;

}  // namespace router
}  // namespace tl
