// What a Router counts from step to step in its state `tally`: the choices of each expert that the rank has, and these.
#pragma once

namespace tl {

// Sums over steps, by their places behind the experts.
enum TallyPlace {
  kExpertsRead,     // experts of the rank that some row of a step has chosen
  kSteps,           // steps
  kBusiestChoices,  // choices of those ranks' experts that most of a step's choices fell on
  kTallyPlaces,
};

}  // namespace tl
