"""``trtllm-lite bench serve``: a load for a server, whoever made it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.bench.options import arrival_options, result_options, seed_option, workload_options
from trtllm_lite.cli.bench.results import Report, Results, warn_if_busy
from trtllm_lite.cli.framework import Command, replaced_options
from trtllm_lite.cli.option_types import COUNT, COUNT_OR_ZERO
from trtllm_lite.cli.replaced import BENCH_SERVE
from trtllm_lite.errors import ArgumentError

if TYPE_CHECKING:
    from trtllm_lite.bench.http_bench import Prompts
    from trtllm_lite.bench.http_client.bodies import Asking

_SATURATED = 0.9  # of a core, from which on the client may be what limits
_UNBOUNDED = 1 << 31
_MOST_IDS = 1 << 31  # of int32


@click.command(cls=Command, short_help="Latencies and throughput of a server, over HTTP.")
@click.option("--base_url", required=True, metavar="URL", help="The server, such as http://localhost:8000.")
@click.option(
    "--endpoint",
    type=click.Choice(["/v1/completions", "/v1/chat/completions"]),
    default="/v1/completions",
    show_default=True,
    help="What is asked.",
)
@click.option("--model", metavar="NAME", help="The model to ask for. [default: the first that the server lists]")
@click.option("--api_key_file", metavar="FILE", help="A file that holds the API key. [default: no key]")
@click.option(
    "--prompt_type",
    type=click.Choice(["ids", "text"]),
    help="Prompts as token ids, or as text, of which a server may make more tokens. [default: ids; text for chat]",
)
@click.option("--tokenizer", metavar="DIR", help="Directory with the tokenizer.json that makes texts of random ids.")
@click.option(
    "--vocab_size", type=click.IntRange(1, _MOST_IDS), help="Random ids are below. [default: the tokenizer's]"
)
@click.option(
    "--max_seq_len",
    type=COUNT,
    help="Tokens of prompt and output that the server takes. [default: what the server says, else any]",
)
@click.option("--stream/--no_stream", default=True, show_default=True, help="Ask for tokens as they come.")
@click.option(
    "--ignore_eos/--no_ignore_eos",
    default=True,
    show_default=True,
    help="Ask for outputs of exactly output_len tokens, whatever the model says.",
)
@workload_options
@arrival_options
@seed_option
@click.option(
    "--num_client_processes", type=COUNT, default=1, show_default=True, help="Processes that requests are dealt to."
)
@click.option(
    "--num_warmups", type=COUNT_OR_ZERO, default=1, show_default=True, help="Requests to send before any is measured."
)
@click.option("--allow_errors", is_flag=True, help="End with exit code 0 even if requests failed.")
@result_options
@replaced_options(BENCH_SERVE)
def serve(base_url: str, api_key_file: str | None, model: str | None, goodput: tuple[str, ...], **options: Any) -> None:
    """Latencies and throughput of a server that speaks OpenAI's protocol, over HTTP.

    Requests are sent when they arrive, whatever is outstanding (an open loop), but at most --concurrency at a time;
    with `--arrival all` that is a closed loop. Latencies count from the instant at which a request is sent: to its
    first chunk with tokens, between chunks, and to its last. A chunk may hold several tokens: the time per output
    token is of tokens then, which the server's usage counts. Requests that fail are counted, and all other figures are
    of those that succeeded.

    \b
    Examples:
      trtllm-lite bench serve --base_url http://localhost:8000 \\
        --vocab_size 32000 --request_rate 4 --input_len sharegpt
      trtllm-lite bench serve --base_url http://localhost:8000 \\
        --tokenizer MODEL --endpoint /v1/chat/completions \\
        --arrival all --concurrency 64 --num_requests 512
    """
    from trtllm_lite.bench.figures import parse_objectives
    from trtllm_lite.bench.http_bench import measure_server
    from trtllm_lite.bench.http_client.bodies import Asking
    from trtllm_lite.bench.http_client.models import find_model
    from trtllm_lite.bench.http_client.server import parse_base_url
    from trtllm_lite.bench.report import server_identity
    from trtllm_lite.bench.workload import Workload
    from trtllm_lite.progress import progress_bars

    results = Results(*(options.pop(name) for name in ("json_path", "compare", "tolerance")))
    asked = {name: options.pop(name) for name in ("endpoint", "stream", "ignore_eos")}
    text = {name: options.pop(name) for name in ("prompt_type", "tokenizer", "vocab_size", "max_seq_len")}
    sent = {name: options.pop(name) for name in ("num_client_processes", "num_warmups")}
    price, allow_errors = options.pop("price_per_hour"), options.pop("allow_errors")
    workload, objectives = Workload(**options), parse_objectives(goodput)
    server = parse_base_url(base_url, _api_key(api_key_file))
    served = find_model(server, model)
    asking = Asking(served.model, **asked)
    prompts = _prompts(asking, served.max_seq_len, **text)
    known = {"prompt_type": "ids" if prompts.decode is None else "text", "vocab_size": prompts.vocab_size}
    terms = {"goodput": objectives, "price_per_hour": price}
    report = server_identity("serve", served.model, workload, {**asked, **known, **sent}, terms)
    report["server"] = {"base_url": server.name, "software": served.software}
    results.expect([report])
    report["busy_cores_before"] = warn_if_busy()
    with progress_bars() as show:
        measured = measure_server(
            served.server,
            workload,
            prompts,
            asking,
            objectives,
            price,
            on_finished=lambda done, total: show("requests", done, total),
            **sent,
        )
    report |= measured
    _print(workload.num_requests, workload.arrival, report)
    _warn_if_saturated(report["client_cpu_shares"])
    failed = report["figures"]["failed_requests"]
    if failed == workload.num_requests or (failed and not allow_errors):
        results.write([report])
        rest = "" if failed == workload.num_requests else "; --allow_errors accepts the figures of the others"
        raise ArgumentError(f"{failed} of {workload.num_requests} requests failed{rest}")
    results.finish([report])


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
    server_max_seq_len: int | None,
    prompt_type: str | None,
    tokenizer: str | None,
    vocab_size: int | None,
    max_seq_len: int | None,
) -> "Prompts":
    """What prompts are made of. Raises ArgumentError if that needs a tokenizer or a size that is not given."""
    from trtllm_lite.bench.http_bench import Prompts, ServerLimits
    from trtllm_lite.bench.http_client.bodies import CHAT
    from trtllm_lite.runtime.text.tokenizer import Tokenizer

    chat = asking.endpoint == CHAT
    if chat and prompt_type == "ids":
        raise ArgumentError(f"prompt_type is 'ids', and {CHAT} takes text: leave it out")
    found = None if tokenizer is None else Tokenizer.from_files(Path(tokenizer))
    as_text = chat or prompt_type == "text"
    if as_text and found is None:
        raise ArgumentError("prompts as text need a tokenizer: give tokenizer, a directory with a tokenizer.json")
    if vocab_size is None:
        if found is None:
            raise ArgumentError("prompts are random token ids: give the model's vocab_size, or its tokenizer")
        vocab_size = found.vocab_size
    limits = ServerLimits(max_seq_len or server_max_seq_len or _UNBOUNDED)
    return Prompts(vocab_size, limits, found.decode if as_text and found is not None else None)


def _print(num_requests: int, arrival: str, report: Report) -> None:
    from trtllm_lite.cli.bench.tables import print_figures
    from trtllm_lite.cli.console import print_table
    from trtllm_lite.units import counted

    if report["errors"]:
        failed = report["figures"]["failed_requests"]
        rows = [[error["kind"], f"{error['count']:,}", error["example"]] for error in report["errors"]]
        print_table(f"{failed:,} of {counted(num_requests, 'request')} failed", ["", "requests", "the first"], rows)
    print_figures(f"{counted(num_requests, 'request')}, {arrival}", report["figures"])
    for priority, latencies in report["by_priority"].items():
        print_figures(f"priority {priority}", latencies)


def _warn_if_saturated(cpu_shares: list[float]) -> None:
    busy = [f"{share:.0%}" for share in cpu_shares if share > _SATURATED]
    if busy:
        click.echo(
            f"Warning: {len(busy)} of {len(cpu_shares)} client processes took {', '.join(busy)} of a core, so that the "
            "client may be what limits: raise --num_client_processes",
            err=True,
        )
