// Where a call of the scheduler leaves the events that it causes.
#pragma once

#include "schedule/clock.h"
#include "schedule/loop/events.h"

namespace tl {

struct EventSink {
  Clock::time_point now;  // the time of the call
  EventBatch& events;
};

}  // namespace tl
