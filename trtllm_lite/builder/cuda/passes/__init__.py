"""The passes for GPUs over the fused graph, in order: each is a function from operators to operators."""

from trtllm_lite.builder.cuda.ops import DevicePass, Op, ProgramKind, without_unread
from trtllm_lite.builder.cuda.passes.adapters import adapters
from trtllm_lite.builder.cuda.passes.cache_slots import cache_slots
from trtllm_lite.builder.cuda.passes.experts import experts
from trtllm_lite.builder.cuda.passes.norm_prologue import norm_prologue
from trtllm_lite.builder.cuda.passes.peer_rows import stored_logits, stored_sums
from trtllm_lite.builder.cuda.passes.qkv_epilogue import qkv_epilogue
from trtllm_lite.builder.cuda.passes.quantized_rows import quantize_epilogue, quantized_rows
from trtllm_lite.builder.cuda.passes.ranks import ranks
from trtllm_lite.builder.cuda.passes.reduced_norm import reduced_norm
from trtllm_lite.builder.cuda.passes.residual_epilogue import residual_epilogue
from trtllm_lite.builder.cuda.passes.rows_with_logits import rows_with_logits
from trtllm_lite.builder.cuda.passes.sampling import sampling
from trtllm_lite.builder.cuda.passes.sum_epilogue import sum_epilogue
from trtllm_lite.builder.cuda.passes.summed_norm import summed_norm

PASSES: tuple[DevicePass, ...] = (
    rows_with_logits,
    sum_epilogue,
    residual_epilogue,
    adapters,
    quantized_rows,
    qkv_epilogue,
    experts,
    norm_prologue,
    quantize_epilogue,
    reduced_norm,
    summed_norm,
    sampling,
    cache_slots,
    stored_sums,
    stored_logits,
    ranks,
)


def run_device_passes(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Return the operators of a program of that kind, after all passes."""
    for device_pass in PASSES:
        ops = without_unread(device_pass(ops, program))
    return ops
