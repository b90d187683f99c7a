// What nearly all sources include, to be compiled once for each set of flags: parsing it takes as long as the rest.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "batching/event_loop.h"
#include "batching/scheduler.h"
