"""Describes the measurement of ``bench serve``, from its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_lite.bench.http_client.endpoints import CHAT, EMBEDDINGS
from trtllm_lite.errors import ArgumentError

if TYPE_CHECKING:
    from trtllm_lite.bench.http_bench import Prompts
    from trtllm_lite.bench.http_client.bodies import Asking
    from trtllm_lite.bench.http_client.models import Served
    from trtllm_lite.bench.workload import Workload

_EMBEDDING_LEN = 1  # tokens that an embedding counts as
_UNBOUNDED = 1 << 31


@dataclass(frozen=True)
class ServerPlan:
    """A measurement: ``workload``, with ``prompts``, is sent to ``served`` in the form of ``asking``.

    ``sending`` is the number of processes, and of warm-up requests; ``objectives`` and ``price_per_hour`` are the terms
    that figures are computed with.
    """

    served: "Served"
    workload: "Workload"
    asking: "Asking"
    prompts: "Prompts"
    sending: dict[str, int]
    objectives: dict[str, float]
    price_per_hour: float | None


def plan_of(options: dict[str, Any]) -> ServerPlan:
    """The plan that the options describe; the server is asked for its model.

    Raises ArgumentError for invalid options, ServerError if the server does not answer.
    """
    from trtllm_lite.bench.figures import parse_objectives
    from trtllm_lite.bench.http_client.bodies import Asking
    from trtllm_lite.bench.http_client.models import find_model
    from trtllm_lite.bench.http_client.server import parse_base_url
    from trtllm_lite.bench.workload import Workload

    base_url, api_key_file, model = (options.pop(name) for name in ("base_url", "api_key_file", "model"))
    asked = {name: options.pop(name) for name in ("endpoint", "stream", "ignore_eos")}
    text = {name: options.pop(name) for name in ("prompt_type", "tokenizer", "vocab_size", "max_seq_len")}
    sending = {name: options.pop(name) for name in ("num_client_processes", "num_warmups")}
    objectives, price_per_hour = parse_objectives(options.pop("goodput")), options.pop("price_per_hour")
    if asked["endpoint"] == EMBEDDINGS:
        asked |= {"stream": False, "ignore_eos": False}
        options["output_len"] = str(_EMBEDDING_LEN)
    workload = Workload(**options)
    served = find_model(parse_base_url(base_url, _api_key(api_key_file)), model)
    asking = Asking(served.model, **asked)
    prompts = _prompts(asking, served, **text)
    return ServerPlan(served, workload, asking, prompts, sending, objectives, price_per_hour)


def _api_key(path: str | None) -> str | None:
    """The key in a file. Raises ArgumentError if it holds none."""
    if path is None:
        return None
    try:
        key = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"cannot read api_key_file {path}: {error}") from error
    if not key or not key.isascii() or not key.isprintable():
        raise ArgumentError(f"api_key_file {path} holds no key: expected one line of ASCII characters")
    return key


def _prompts(
    asking: "Asking",
    served: "Served",
    prompt_type: str | None,
    tokenizer: str | None,
    vocab_size: int | None,
    max_seq_len: int | None,
) -> "Prompts":
    """The source of prompts. Raises ArgumentError if it needs a tokenizer or a size that is not given."""
    from trtllm_lite.bench.http_bench import Prompts, ServerLimits
    from trtllm_lite.runtime.text.tokenizer import Tokenizer

    chat = asking.endpoint == CHAT
    if chat and prompt_type == "ids":
        raise ArgumentError(f"prompt_type is 'ids', and {CHAT} takes text: leave prompt_type out")
    found = None if tokenizer is None else Tokenizer.from_files(Path(tokenizer))
    as_text = chat or prompt_type == "text"
    if as_text and found is None:
        raise ArgumentError("prompts as text need a tokenizer: give tokenizer, a directory with a tokenizer.json")
    if vocab_size is None:
        if found is None:
            raise ArgumentError("prompts are random token ids: give the model's vocab_size, or its tokenizer")
        vocab_size = found.vocab_size
    longest = max_seq_len or served.max_seq_len or _UNBOUNDED
    if asking.endpoint == EMBEDDINGS:
        longest += _EMBEDDING_LEN
    limits = ServerLimits(longest, min(served.max_input_len or longest, longest))
    return Prompts(vocab_size, limits, found.decode if as_text and found is not None else None)
