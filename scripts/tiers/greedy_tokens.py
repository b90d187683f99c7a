"""Prints an engine's greedy continuation as JSON: `greedy_tokens.py ENGINE`. It imports only the runtime."""

import json
import platform
import sys

from trtllm_lite import LLM, SamplingParams

PROMPTS = ["The capital of France is", "1, 2, 3, 4,"]
MAX_TOKENS = 8

with LLM(sys.argv[1], max_batch_size=2, max_seq_len=64) as llm:
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0), use_tqdm=False)
print(f"on {platform.machine()}, Python {platform.python_version()}", file=sys.stderr)
print(json.dumps([list(map(int, output.outputs[0].token_ids)) for output in outputs]))
