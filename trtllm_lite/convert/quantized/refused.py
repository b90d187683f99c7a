"""Quantization methods whose checkpoints are not read, by name, with the reason: decisions rather than gaps."""

REFUSED = {
    "aqlm": "its weights are sums of vectors from learned codebooks, which no kernel here looks up",
    "bitnet": "its ternary weights need the kernels of BitNet; expanded, they would be a model of 16 bits",
    "dfloat11": "it compresses 16-bit weights without loss for one decoder: the original model has the same weights",
    "eetq": "its int8 weights are stored in the order of one library's kernels",
    "exl2": "its bits differ from column to column, and only ExLlamaV2 reads them",
    "exl3": "its weights are coded by a trellis (QTIP), which only ExLlamaV3 decodes",
    "fbgemm_fp8": "its activations are clipped at activation_scale_ub, which no kernel here does",
    "fp_quant": "its weights are rotated for kernels of Blackwell GPUs",
    "higgs": "its weights are rotated and coded by vectors, which no kernel here looks up",
    "hqq": "its zero points are fractions, and its layout is the library's own",
    "quanto": "its tensors are stored in the library's own layouts",
    "quark": "its exports are made for AMD's GPUs and differ from version to version",
    "sinq": "its matrices have scales for rows and for columns at the same time",
    "spqr": "its outliers are stored as sparse matrices, which no kernel here multiplies",
    "torchao": "its tensors are pickled objects, whose layout changes with the version of torchao",
    "vptq": "its weights are vectors from learned codebooks, which no kernel here looks up",
}
