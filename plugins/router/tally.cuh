// What a Router counts over steps in its state `tally`: the choices of each of the rank's experts, and the counters
// below.
#pragma once

namespace tl {

// The counters that follow the experts' counters.
enum TallyPlace {
  kExpertsRead,     // experts of the rank that some row of a step has chosen
  kSteps,           // steps
  kBusiestChoices,  // choices of the experts of the busiest EP rank of each step, summed over steps
  kTallyPlaces,
};

}  // namespace tl
