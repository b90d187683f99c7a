"""AWQ (arXiv 2306.00978) as AutoAWQ and AutoRound store it (``quant_method: awq``, version gemm).

``qweight`` int32 [in, out / 8] and ``qzeros`` [groups, out / 8] hold eight neighbouring output features a word, in the
order 0 2 4 6 1 3 5 7; ``scales`` is [groups, out]. https://github.com/casper-hansen/AutoAWQ,
awq/modules/linear/gemm.py.
"""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.gptq import GPTQMODEL_KEYS, read_bits
from trtllm_lite.convert.quantized.groups import Groups
from trtllm_lite.convert.quantized.layer import Layer, Matrix
from trtllm_lite.convert.quantized.method import LinearMethod
from trtllm_lite.convert.quantized.words import unpacked

_BITS, _PER_WORD = 4, 8
_PLACES = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])  # position of each output feature in a word
# Settings that tell how the weights were found, or repeat what the tensors show.
_NEUTRAL = """
    group_size zero_point sym modules_to_not_convert provider autoround_version data_type enable_quanted_input
    static_attention_granularity static_kv_granularity to_quant_block_names block_name_to_quantize backend do_fuse
    fuse_max_seq_len modules_to_fuse exllama_config q_group_size w_bit iters nsamples seqlen
"""


class Awq(LinearMethod):
    """4-bit weights with zero points."""

    def __init__(self, fields: ConfigFields) -> None:
        """Take the settings; an unsupported value becomes a problem of ``fields``."""
        for key in (_NEUTRAL + GPTQMODEL_KEYS).split():
            fields.take(key)
        fields.rename({"format": "version", "checkpoint_format": "version"})  # GPTQModel's names
        fields.expect("version", "gemm", "GEMM")
        read_bits(fields, _BITS)
        self.description = "awq, 4 bits"

    def matrix(self, layer: Layer) -> Matrix:
        """Implements :meth:`LinearMethod.matrix`."""
        in_features, packed = layer.find("qweight", ("int32",), 2).shape
        out_features = packed * _PER_WORD
        scales = layer.find("scales", PLAIN_DTYPES, 2)
        count = scales.shape[0]
        layer.expect("scales", (count, out_features))
        layer.expect("qzeros", (count, packed), "int32")
        groups = Groups(
            (out_features, in_features),
            _BITS,
            count,
            lambda: _by_feature(layer.load("qweight")),
            lambda: layer.load("scales").T,
            scales.dtype,
            lambda: _by_feature(layer.load("qzeros")),
        )
        return groups.matrix(layer, "qweight", "qzeros", "scales")


def _by_feature(words: NDArray) -> NDArray[np.uint8]:
    """Elements [out, rows] of ``words`` [rows, out / 8]."""
    in_words = unpacked(words, _BITS).reshape(*words.shape, _PER_WORD)
    return np.ascontiguousarray(in_words[..., _PLACES].reshape(len(words), -1).T)
