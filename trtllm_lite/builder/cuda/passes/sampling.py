"""Ends a program with the sampling of tokens into GPU memory, where the embedding of the next step reads them.

In a pipeline the last stage samples, and the first stage embeds. Sequences that keep no cache, those
of encoders, have no next step.
"""

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Op, ProgramKind
from trtllm_lite.builder.cuda.program_ops import last_tokens, program_op, step_input
from trtllm_lite.builder.graph import dims
from trtllm_lite.common.vocabulary import LOGITS
from trtllm_lite.plugins.sample.cuda import mask_words, max_edits


def sampling(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Sample(logits) is added; Embedding(token_ids) becomes Embedding(token_ids, token_slots, last_tokens)."""
    if not program.limits.cache_groups:
        return ops
    results = (value for op in ops for value in op.outputs.values() if value.is_graph_output())
    drawn = [_sample(ops, value, program) for value in results if value.name == LOGITS]
    found = {"token_slots": step_input("token_slots", ops), "last_tokens": last_tokens(drawn)}
    return [*(op.with_inputs(**found) if op.kind == "Embedding" else op for op in ops), *drawn]


def _sample(ops: list[Op], logits: ir.Value, program: ProgramKind) -> Op:
    vocab = (dims(logits) or ())[-1]
    assert isinstance(vocab, int)
    edits, extents = max_edits(vocab, program.limits.max_seq_len), {"vocab": vocab, "mask_words": mask_words(vocab)}
    return program_op("Sample", ops, {"logits": logits}, {"max_edits": edits}, extents)
