"""Holds all names of other engines, by the place where they are typed; the migration pages are generated from them."""

from collections.abc import Mapping

from trtllm_lite.foreign_names import calls, classes, commands, serving
from trtllm_lite.foreign_names.entry import Foreign
from trtllm_lite.foreign_names.environment import VARIABLES
from trtllm_lite.foreign_names.llama_cpp import LLAMA_SERVER

OPTIONS: Mapping[str, Mapping[str, Foreign]] = {
    "convert": commands.CONVERT,
    "build": commands.BUILD,
    "plan": commands.PLAN,
    "generate": commands.GENERATE,
    "serve": serving.SERVE,
    "bench serve": serving.BENCH_SERVE,
}
"""Options, by the command that knows them."""
CALLS: Mapping[str, Mapping[str, Foreign]] = {
    "LLM": calls.LLM,
    "SamplingParams": calls.SAMPLING_PARAMS,
    "KvCacheConfig": calls.KV_CACHE_CONFIG,
    "BuildConfig": calls.BUILD_CONFIG,
    "QuantConfig": calls.QUANT_CONFIG,
    "ModelRunner.from_dir": calls.FROM_DIR,
    "ModelRunner.generate": calls.GENERATE,
    **{name: made.arguments for name, made in classes.MADE.items()},
}
"""Arguments, by the class or method that knows them."""
TABLE: Mapping[str, Mapping[str, Foreign]] = {
    **OPTIONS,
    **CALLS,
    "llama-server": LLAMA_SERVER,
    "commands": commands.COMMANDS,
    "classes": classes.CLASSES,
    "variables": VARIABLES,
}
"""All tables, by the place where their names are typed."""
