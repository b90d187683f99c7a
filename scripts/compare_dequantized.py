"""Compares the matrices of a quantized checkpoint, as `convert` reads them, with those of the method's own package.

The package's matrices are a safetensors file of tensors named as in the checkpoint (…q_proj.weight), in any floating
type. The values of `convert` are rounded to that type once, as in packages that multiply in it. These files are made in
the package's own environment:

- compressed-tensors: `AutoModelForCausalLM.from_pretrained(DIR, quantization_config=CompressedTensorsConfig(
  run_compressed=False))` of transformers, and its state_dict; for act-order, which release 0.19 does not support,
  `quantize` and `dequantize` with g_idx of 0.9.4 (`compressed_tensors.quantization.lifecycle.forward`);
- AWQ and GPTQ of AutoRound: `dequantize_gemm` of `auto_round.export.export_to_awq.utils`, and the `QuantLinear` of
  `auto_round_extension.torch.qlinear_torch_zp` applied to the identity, with scales of float16 and of float32; for
  version 2 of GPTQ the `QuantLinear` of `qlinear_torch`;
- fp8 in tiles: `FineGrainedFP8Config(dequantize=True)` of transformers, which supports only whole tiles;
- mxfp4: `convert_moe_packed_tensors` of `transformers.integrations.mxfp4`;
- ModelOpt: `dequantize` of the classes in `modelopt.torch.quantization.qtensor` (FP8, NVFP4, MXFP4); for W4A16_AWQ
  `pack_int4_in_uint8` of `modelopt.torch.export.quant_utils` packs our matrices into the stored bytes.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from trtllm_lite.convert.mapping import open_source
from trtllm_lite.convert.sources.safetensors_file import SafetensorsFile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", help="the quantized checkpoint")
    parser.add_argument("dequantized", help="the package's matrices, a safetensors file")
    arguments = parser.parse_args()
    source, expected = open_source(arguments.model_dir), SafetensorsFile(Path(arguments.dequantized))
    differing = [name for name in source.blocks if not _is_same(source.read(name), expected.read(name))]
    print(f"{source.quantization}: {len(source.blocks)} matrices, {len(differing)} differ", *differing, sep="\n  ")
    return 1 if differing or not source.blocks else 0


def _is_same(matrix: np.ndarray, expected: np.ndarray) -> bool:
    return np.array_equal(matrix.astype(expected.dtype).astype(np.float32), expected.astype(np.float32))


if __name__ == "__main__":
    sys.exit(main())
