"""Maps the names of tensors in GGUF files (gguf-py/gguf/tensor_mapping.py of llama.cpp) to those of Hugging Face."""

import re
from collections.abc import Collection, Mapping

from trtllm_lite.convert.family import Family, Gguf

# GGUF's tensor names by role (trtllm_lite.convert.sources.source_tensors) in most architectures.
_ROLES = {
    "token_embd": "embedding",
    "output_norm": "final_norm",
    "output": "lm_head",
    "blk.{layer}.attn_norm": "attention_norm",
    "blk.{layer}.attn_q": "q_proj",
    "blk.{layer}.attn_k": "k_proj",
    "blk.{layer}.attn_v": "v_proj",
    "blk.{layer}.attn_q_norm": "q_norm",
    "blk.{layer}.attn_k_norm": "k_norm",
    "blk.{layer}.attn_output": "o_proj",
    "blk.{layer}.ffn_norm": "mlp_norm",
    "blk.{layer}.ffn_gate": "gate_proj",
    "blk.{layer}.ffn_up": "up_proj",
    "blk.{layer}.ffn_down": "down_proj",
    "blk.{layer}.ffn_gate_inp": "router",
    "blk.{layer}.ffn_gate_exps": "expert_gate_proj",
    "blk.{layer}.ffn_up_exps": "expert_up_proj",
    "blk.{layer}.ffn_down_exps": "expert_down_proj",
    "blk.{layer}.ffn_gate_inp_shexp": "shared_expert_gate",
    "blk.{layer}.ffn_gate_shexp": "shared_gate_proj",
    "blk.{layer}.ffn_up_shexp": "shared_up_proj",
    "blk.{layer}.ffn_down_shexp": "shared_down_proj",
}


def roles_of(declared: Gguf) -> Mapping[str, str]:
    """The roles of a family's tensors by their names in its files, without .weight and .bias."""
    return {**_ROLES, **declared.roles}


def names_in_file(name: str, family: Family, found: Collection[str], num_layers: int) -> tuple[str, ...]:
    """The names in a file of the tensor that Hugging Face calls ``name``; ``name`` itself if it has no role there.

    If files split the tensor into several, these are the names of those that are not ``found``, or all if none is
    missing. Numbers that files list in metadata have the name of the key. Layers that draft (MTP) come after the
    model's ``num_layers``.
    """
    declared = family.gguf or Gguf("")
    for key, role in declared.listed.items():
        if _pattern(family.tensor_names[role], bare=True).fullmatch(name):
            return (key,)
    own = {role: (stem,) for stem, role in roles_of(declared).items()}
    stems: dict[str, tuple[str, ...]] = {**own, **declared.by_head}
    drafting = family.predictor.tensor_names if family.predictor and declared.drafting_layers else {}
    of_model, of_drafting = (
        [(role, pattern, first) for role, pattern in names.items()]
        for names, first in ((family.tensor_names, 0), (drafting, num_layers))
    )
    for role, pattern, first in [*of_model, *of_drafting]:
        place = _pattern(pattern, role in declared.bare).fullmatch(name)
        if place is not None and role in stems:
            suffix = "bias" if name.endswith("bias") else "weight"
            layer = first + int(place.groupdict().get("layer", 0))
            ending = "" if role in declared.without_suffix else f".{suffix}"
            names = tuple(f"{stem.format(layer=layer)}{ending}" for stem in stems[role])
            return tuple(stored for stored in names if stored not in found) or names
    return (name,)


def _pattern(name: str, bare: bool) -> re.Pattern[str]:
    """A pattern of Hugging Face's names with the form ``name`` of a role."""
    form = re.escape(name).replace(re.escape("{layer}"), r"(?P<layer>\d+)").replace(re.escape("{expert}"), r"\d+")
    return re.compile(form if bare else rf"{form}\.(weight|bias)")
