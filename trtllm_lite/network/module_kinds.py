"""Defines the kinds of modules that a checkpoint's network may be: what each looks like, and what it has no use for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from trtllm_lite.common.vocabulary import (
    ATTENTION,
    DECODER,
    DRAFTING_HEAD,
    ENCODER_INPUTS,
    FEATURES,
    MODULE_USES,
    NETWORK_INPUTS,
    PATCHES,
    SCORES,
    SEQ_LENS,
    TEXT_CLASSIFIER,
    TEXT_ENCODER,
    TOWER_INPUTS,
    VISION_TOWER,
)
from trtllm_lite.errors import BuildError


@dataclass(frozen=True)
class ModuleKind:
    """A kind of module, one of ``MODULE_KINDS``.

    ``inputs`` are the ranks of the network's inputs, by name, without features and caches. Its first output is float32
    of the extents ``output_rows`` and one more. ``caching_layer`` is the kind of a layer that such a
    network has at least, by what it keeps of a sequence (``LAYER_CACHES``); None if its layers keep nothing.
    ``refused`` has the reason, and what to do, for each option that modules of this kind have no use for.
    """

    name: str
    inputs: Mapping[str, int]
    output_rows: tuple[str, ...]
    caching_layer: str | None
    refused: Mapping[str, str]

    @property
    def output(self) -> str:
        """The name of the network's first output, which is also that of the module's."""
        return MODULE_USES[self.name].output

    @property
    def whole_prompts(self) -> bool:
        """Whether a step computes each of its sequences whole, because nothing of them is kept for later steps."""
        return self.caching_layer is None

    def check(self, **given: object) -> None:
        """Raise BuildError for the first of the ``given`` options that the module has no use for.

        An option whose value is False or None is not given.
        """
        for name, reason in self.refused.items():
            value = given.get(name)
            if value is not None and value is not False:
                how = "given" if value is True else value
                raise BuildError(f"{name} is {how}: {reason}")


_LEAVE_OUT = "; leave it out"
_ONE_DEVICE = f"encoders run on one device only{_LEAVE_OUT}"
_NO_CACHE = f"encoders have no KV cache{_LEAVE_OUT}"
_DECODER = ModuleKind(DECODER, NETWORK_INPUTS, ("batch", "seq"), ATTENTION, refused={})
_TEXT_ENCODER = ModuleKind(
    TEXT_ENCODER,
    inputs=ENCODER_INPUTS,
    output_rows=("batch",),
    caching_layer=None,
    refused={
        "backend": f"encoders are for the backend native{_LEAVE_OUT}",
        "kv_cache_dtype": _NO_CACHE,
        "key_cache_dtype": _NO_CACHE,
        "calibration": "encoders have no logits of all tokens to calibrate by; choose a qformat that needs none, "
        "such as int8_wo or fp8_rowwise",
        "accuracy": "it is by the tokens that a model predicts, and an encoder predicts none; leave "
        "max_accuracy_loss out, or name a qformat instead of autoq_format",
        "max_beam_width": f"encoders generate nothing{_LEAVE_OUT}",
        "max_draft_len": f"encoders generate nothing{_LEAVE_OUT}",
        "gather_context_logits": f"encoders make no logits{_LEAVE_OUT}",
        "max_lora_rank": f"encoders take no adapters yet{_LEAVE_OUT}",
        "enable_prompt_embeds": f"encoders take no embeddings of tokens{_LEAVE_OUT}",
        "tp_size": _ONE_DEVICE,
        "pp_size": _ONE_DEVICE,
    },
)
_KINDS = {
    DECODER: _DECODER,
    DRAFTING_HEAD: replace(
        _DECODER,
        name=DRAFTING_HEAD,
        refused={
            "max_beam_width": f"a head or a layer that drafts (EAGLE-3, MTP) searches nothing{_LEAVE_OUT}",
            "max_lora_rank": "a head or a layer that drafts (EAGLE-3, MTP) takes no adapters; leave it out here, and "
            "pass it for the model that is drafted for",
            "enable_prompt_embeds": f"a head or a layer that drafts takes no embeddings{_LEAVE_OUT}",
        },
    ),
    TEXT_ENCODER: _TEXT_ENCODER,
    TEXT_CLASSIFIER: replace(_TEXT_ENCODER, name=TEXT_CLASSIFIER),
    VISION_TOWER: replace(_TEXT_ENCODER, name=VISION_TOWER, inputs=TOWER_INPUTS, output_rows=("batch", "image_seq")),
}


def module_kind(graph: ir.Graph) -> ModuleKind:
    """The kind of a network before any pass has run."""
    names = {value.name for value in graph.inputs}
    if PATCHES in names:
        return _KINDS[VISION_TOWER]
    if SEQ_LENS in names:
        classifies = any(value.name == SCORES for value in graph.outputs)
        return _KINDS[TEXT_CLASSIFIER if classifies else TEXT_ENCODER]
    return _KINDS[DRAFTING_HEAD if FEATURES in names else DECODER]
