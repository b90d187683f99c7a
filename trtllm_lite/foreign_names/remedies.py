"""Lists the sentences that several names share."""

GUESSES = (
    "engines of `trtllm-lite build --max_draft_len` take guessed tokens, and `trtllm-lite serve --speculative_config`, "
    "or speculative_config in Python, says how they are guessed"
)
MEDUSA = (
    "the heads of Medusa, EAGLE-1 and EAGLE-2 and lookahead decoding are not read; speculative_config has ngram, "
    "suffix, draft_model, eagle3 and mtp instead"
)
QUANTIZE = (
    "quantize with `trtllm-lite build --qformat`, and give that engine; a model that is stored quantized is converted "
    "as it is"
)
SCHEMES = "`trtllm-lite quantize --help` lists the schemes; choose one with --qformat"
QUANTIZED_CHECKPOINT = "`trtllm-lite convert` takes the directory of a model that is stored quantized, as it is"
NO_CODE = "code that comes with a model is never run; leave it out"
TEXT_ONLY = "only models of text are supported; leave it out"
SINKS = "attention sinks that are no part of a model are not supported; leave it out"
WINDOWS = "attention windows are part of the model and travel in the engine; leave it out"
BEAMS = "beams are ranked by their probability alone; leave it out"
KERNELS = "engines choose this themselves; leave it out"
