// Modules and their ports: what flows into an engine from another one, and out of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/records.h"

namespace tl {

// The engine's only module (check_plan).
inline const Module& only_module(const Manifest& manifest) { return manifest.modules.front(); }

constexpr FirstOutput first_output(ModuleKind kind) { return kFirstOutputs[static_cast<int>(kind)]; }

// Whether the module makes logits, from which a scheduler draws tokens; an encoder makes none.
inline bool generates(const Module& module) { return first_output(module.kind).name == kLogits; }
// Whether the module drafts from rows that another module keeps.
inline bool drafts(const Module& module) { return module.kind == ModuleKind::kDraftingHead; }

// Whether the rows of a port are kept in the paged cache of the module that makes them.
inline bool is_cached(const Port& port) {
  return !port.shape.empty() && port.shape.front().symbol == Symbol::kNumBlocks;
}

// The ports that are kept in the paged cache, or with `cached` false the others.
std::vector<Port> ports(const std::vector<Port>& all, bool cached);

// The bytes that rows of a cached port take in a block.
std::int64_t block_bytes(const Port& port);

// The port as errors show it: its name, type and shape.
std::string text_of(const Port& port);

// The bytes of a row that may take the place of a token (the input token_rows); 0 if the module takes none.
std::int64_t token_row_bytes(const Module& module);

// Returns whether both are the same rows: the same name, type and shape.
bool is_same(const Port& one, const Port& other);

}  // namespace tl
