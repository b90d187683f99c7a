"""A program ends with the draw of tokens, which the embedding of the next step finds where they were left."""

from trtllm_lite.builder.cuda.ops import Op, ProgramKind
from trtllm_lite.builder.cuda.program_ops import program_op, step_input
from trtllm_lite.builder.graph import dims
from trtllm_lite.plugins.sample.cuda import mask_words, max_edits
from trtllm_lite.vocabulary import LOGITS


def sampling(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Sample(logits) is added; Embedding(token_ids) becomes Embedding(token_ids, token_slots, last_tokens)."""
    results = (value for op in ops for value in op.outputs.values() if value.is_graph_output())
    logits = next(value for value in results if value.name == LOGITS)
    vocab = (dims(logits) or ())[-1]
    assert isinstance(vocab, int)
    edits, extents = max_edits(vocab, program.limits.max_seq_len), {"vocab": vocab, "mask_words": mask_words(vocab)}
    sample = program_op("Sample", ops, {"logits": logits}, {"max_edits": edits}, extents)
    found = {"token_slots": step_input("token_slots", ops), "last_tokens": sample.inputs["last_tokens"]}
    return [*(op.with_inputs(**found) if op.kind == "Embedding" else op for op in ops), sample]
