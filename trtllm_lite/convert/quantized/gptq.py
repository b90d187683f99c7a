"""GPTQ (arXiv 2210.17323) as AutoGPTQ, GPTQModel and AutoRound store it (``quant_method: gptq``).

``qweight`` int32 [in * bits / 32, out] holds the elements of a column one after the other, ``qzeros`` [groups, out *
bits / 32] zero points, ``scales`` [groups, out]. Stored zero points are 1 too small, modulo 2^bits; with
``checkpoint_format: gptq_v2`` they are exact. ``g_idx`` [in] is the group of each input feature; without it groups are
consecutive features.
https://github.com/AutoGPTQ/AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda.py.
"""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.groups import Groups
from trtllm_lite.convert.quantized.layer import Layer, Matrix
from trtllm_lite.convert.quantized.method import LinearMethod
from trtllm_lite.convert.quantized.words import WORD_BITS, unpacked

# Settings of GPTQModel that tell how it found the weights; settings that change weights (adapter, rotation) are not
# listed.
GPTQMODEL_KEYS = """
    pack_dtype pack_impl meta lm_head desc_act act_group_aware static_groups true_sequential damp_percent
    damp_auto_increment mse gptaq foem hessian fallback failsafe failsafe_with_rtn pre_filters weight_only
    gc_mode wait_for_submodule_finalizers auto_forward_data_parallel vram_strategy dense_vram_strategy
    dense_vram_strategy_devices moe_vram_strategy moe_vram_strategy_devices moe offload_to_disk offload_to_disk_path
"""
# Settings that tell how the weights were found, or repeat what the tensors show.
_NEUTRAL = """
    group_size provider autoround_version data_type enable_quanted_input static_attention_granularity
    static_kv_granularity model_name_or_path model_file_base_name dataset tokenizer use_cuda_fp16 model_seqlen
    block_name_to_quantize module_name_preceding_first_block batch_size pad_token_id use_exllama disable_exllama
    exllama_config max_input_length cache_block_outputs modules_in_block_to_quantize to_quant_block_names iters lr
    minmax_lr nsamples seqlen low_gpu_mem_usage amp enable_minmax_tuning enable_norm_bias_tuning
    gradient_accumulate_steps scale_dtype modules_to_not_convert backend hyb quant_lm_head
"""


class Gptq(LinearMethod):
    """The layers of a GPTQ checkpoint; with ``sym`` zero points are half of the range, and need not be stored."""

    def __init__(self, fields: ConfigFields) -> None:
        """Take the settings; an unsupported value becomes a problem of ``fields``."""
        for key in (_NEUTRAL + GPTQMODEL_KEYS).split():
            fields.take(key)
        fields.rename({"format": "checkpoint_format"})  # GPTQModel writes both
        fields.expect("checkpoint_format", "gptq", "gptq_v2")
        overrides = fields.take("dynamic") or {}
        if not isinstance(overrides, dict) or not all(name.startswith("-:") for name in overrides):
            fields.problem("dynamic", "settings of single layers are not supported")
        self._less = 0 if fields.take("checkpoint_format") == "gptq_v2" else 1
        self._bits = read_bits(fields, 2, 3, 4, 8)
        self._symmetric = fields.flag("sym", True)
        self.description = f"gptq, {self._bits} bits"

    def matrix(self, layer: Layer) -> Matrix:
        """Implements :meth:`LinearMethod.matrix`."""
        packed, out_features = layer.find("qweight", ("int32",), 2).shape
        in_features = packed * WORD_BITS // self._bits
        if in_features * self._bits != packed * WORD_BITS or out_features * self._bits % WORD_BITS:
            raise layer.error(f"expected whole words of {self._bits} bits in qweight and qzeros, found others")
        scales = layer.find("scales", PLAIN_DTYPES, 2)
        count = scales.shape[0]
        layer.expect("scales", (count, out_features))
        layer.expect("qzeros", (count, out_features * self._bits // WORD_BITS), "int32")
        groups = Groups(
            (out_features, in_features),
            self._bits,
            count,
            lambda: self._elements(layer),
            lambda: layer.load("scales").T,
            scales.dtype,
            None if self._symmetric else lambda: self._zeros(layer),
        )
        return groups.matrix(layer, "qweight", "qzeros", "scales").with_groups(layer, "g_idx", count)

    def _zeros(self, layer: Layer) -> NDArray[np.uint8]:
        stored = unpacked(layer.load("qzeros"), self._bits).T
        return np.ascontiguousarray(stored + np.uint8(self._less) & np.uint8((1 << self._bits) - 1))

    def _elements(self, layer: Layer) -> NDArray[np.uint8]:
        half = 1 << (self._bits - 1)
        if self._symmetric:
            # Zero points of symmetric weights can only be half of the range, in either checkpoint format.
            stored = unpacked(layer.load("qzeros"), self._bits)
            if not any((stored == zero).all() for zero in (half, half - 1)):
                raise layer.error(
                    f"expected zero points of {half} in qzeros, as quantization_config says sym, found others: set "
                    "sym to false there if the zero points count"
                )
        return unpacked(layer.load("qweight").T, self._bits)


def read_bits(fields: ConfigFields, *supported: int) -> int:
    """The ``bits`` of an element, one of those supported."""
    bits = fields.integer("bits")
    if bits not in supported:
        fields.problem("bits", f"expected {' or '.join(map(str, supported))}, found {bits}")
    return bits
