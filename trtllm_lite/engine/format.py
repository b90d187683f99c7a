"""Defines constants of the engine container: a safetensors file whose metadata has versions and checksums.

Every entry starts at a multiple of :data:`ALIGNMENT` from the data section, and the data section starts at a multiple
of it in the file, so that a memory-mapped weight can be read with aligned vector loads.
"""

from trtllm_lite import __version__
from trtllm_lite.common.vocabulary import (
    ALIGNMENT,
    IMAGE_PROCESSOR_FILE,
    MAX_BYTES,
    MAX_JSON_BYTES,
    MAX_PP_SIZE,
    MAX_TOKENIZER_BYTES,
    MAX_TP_SIZE,
)

PRODUCER = f"trtllm_lite {__version__}"


def engine_file(rank: int) -> str:
    """The name of a rank's engine in an engine directory."""
    return f"rank{rank}.engine"


# An engine of one rank has only the first of these files.
ENGINE_FILES = tuple(map(engine_file, range(MAX_TP_SIZE * MAX_PP_SIZE)))
ENGINE_FILE = ENGINE_FILES[0]  # its manifest describes the whole directory
CONFIG_FILE = "config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# The files that a manifest may name: they come from the checkpoint, and travel with the engine.
COMPANION_FILES = (*TOKENIZER_FILES, IMAGE_PROCESSOR_FILE)
# A tokenizer_config.json consists mostly of a chat template.
_MAX_FILE_BYTES = dict.fromkeys(ENGINE_FILES, MAX_BYTES) | dict(
    zip(TOKENIZER_FILES, (MAX_TOKENIZER_BYTES, 1 << 24), strict=True)
)

LENGTH_BYTES = 8  # safetensors: a little-endian u64 with the length of the JSON header
# The bound is far above the header of any engine, and low enough that a forged length costs little memory.
MAX_HEADER_BYTES = 1 << 26
MAX_STORED_RANK = 8

MANIFEST_ENTRY = "manifest"
PLAN_ENTRY = "plan"
WEIGHT_PREFIX = "weights."
CUBIN_PREFIX = "cubin."
NETWORK_PREFIX = "network."
PADDING_PREFIX = "padding."

ZERO_CHECKSUM = "00000000"
CHECKSUM_KEY = '"header_crc32c":"'


def max_file_bytes(name: str) -> int:
    """The maximum size of the file ``name`` of an engine. All files except the engine itself are read whole."""
    return _MAX_FILE_BYTES.get(name, MAX_JSON_BYTES)


def align(num_bytes: int, alignment: int = ALIGNMENT) -> int:
    """The smallest multiple of ``alignment`` that is at least ``num_bytes``."""
    return -(-num_bytes // alignment) * alignment
