"""``trtllm-lite bench serve``: sends a load to any server of OpenAI's protocol."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.bench.http_client.endpoints import COMPLETIONS, ENDPOINTS
from trtllm_lite.cli.bench.options import arrival_options, result_options, seed_option, workload_options
from trtllm_lite.cli.bench.results import Report, Results, warn_if_busy
from trtllm_lite.cli.bench.server_plan import ServerPlan, plan_of
from trtllm_lite.cli.foreign_options import foreign_options
from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.option_types import COUNT, COUNT_OR_ZERO
from trtllm_lite.errors import ArgumentError
from trtllm_lite.foreign_names.serving import BENCH_SERVE

if TYPE_CHECKING:
    from trtllm_lite.bench.trace import Trace

_SATURATED = 0.9  # share of a core; above it the client may be the bottleneck
_MOST_IDS = 1 << 31  # ids are int32


@click.command(cls=Command, short_help="Latencies and throughput of a server, over HTTP.")
@click.option("--base_url", required=True, metavar="URL", help="The server, such as http://localhost:8000.")
@click.option(
    "--endpoint",
    type=click.Choice(ENDPOINTS),
    default=COMPLETIONS,
    show_default=True,
    help="Endpoint to measure. An embedding is not streamed, and counts as one output token.",
)
@click.option("--model", metavar="NAME", help="The model to ask for. [default: the first that the server lists]")
@click.option("--api_key_file", metavar="FILE", help="A file that holds the API key. [default: no key]")
@click.option(
    "--prompt_type",
    type=click.Choice(["ids", "text"]),
    help="Prompts as token ids, or as text, which may become more tokens on the server. [default: ids; text for chat]",
)
@click.option("--tokenizer", metavar="DIR", help="Directory with the tokenizer.json that makes texts of random ids.")
@click.option(
    "--vocab_size",
    type=click.IntRange(1, _MOST_IDS),
    help="Upper bound of random token ids. [default: the tokenizer's]",
)
@click.option(
    "--max_seq_len",
    type=COUNT,
    help="Tokens of prompt and output that the server takes. [default: what the server says, else any]",
)
@click.option("--stream/--no_stream", default=True, show_default=True, help="Stream the tokens.")
@click.option(
    "--ignore_eos/--no_ignore_eos",
    default=True,
    show_default=True,
    help="Ask for outputs of exactly output_len tokens, even if the model would end them earlier.",
)
@workload_options
@arrival_options
@seed_option
@click.option(
    "--num_client_processes", type=COUNT, default=1, show_default=True, help="Client processes that share the requests."
)
@click.option(
    "--num_warmups", type=COUNT_OR_ZERO, default=1, show_default=True, help="Requests to send before any is measured."
)
@click.option("--allow_errors", is_flag=True, help="End with exit code 0 even if requests failed.")
@result_options
@foreign_options(BENCH_SERVE)
def serve(allow_errors: bool, **options: Any) -> None:
    """Latencies and throughput of a server that speaks OpenAI's protocol, over HTTP.

    Requests are sent when they arrive, however many are outstanding (an open loop), but at most --concurrency at a
    time; with `--arrival all` that is a closed loop. Latencies count from the instant at which a request is sent: to
    its first chunk with tokens, between chunks, and to its last. A chunk may hold several tokens: the time per output
    token then counts tokens, by the server's usage. Requests that fail are counted, and all other figures are of those
    that succeeded.

    \b
    Examples:
      trtllm-lite bench serve --base_url http://localhost:8000 \\
        --vocab_size 32000 --request_rate 4 --input_len sharegpt
      trtllm-lite bench serve --base_url http://localhost:8000 \\
        --tokenizer MODEL --endpoint /v1/chat/completions \\
        --arrival all --concurrency 64 --num_requests 512
      trtllm-lite bench serve --base_url http://localhost:8000 \\
        --endpoint /v1/embeddings --vocab_size 30000 \\
        --request_rate 5 --input_len 32
    """
    results = Results.taken_from(options)
    plan = plan_of(options)
    report = _identity(plan)
    results.expect([report])
    report["busy_cores_before"] = warn_if_busy()
    report |= _measure(plan, results.trace)
    _print(plan.workload.num_requests, plan.workload.arrival, report)
    _warn_if_saturated(report["client_cpu_shares"])
    _conclude(results, report, plan.workload.num_requests, allow_errors=allow_errors)


def _identity(plan: ServerPlan) -> Report:
    """The report of a plan, without figures."""
    from trtllm_lite.bench.report import server_identity

    asked = asdict(plan.asking)
    model = asked.pop("model")
    prompts = {"prompt_type": "ids" if plan.prompts.decode is None else "text", "vocab_size": plan.prompts.vocab_size}
    terms = {"goodput": plan.objectives, "price_per_hour": plan.price_per_hour}
    report = server_identity("serve", model, plan.workload, {**asked, **prompts, **plan.sending}, terms)
    report["server"] = {"base_url": plan.served.server.name, "software": plan.served.software}
    return report


def _measure(plan: ServerPlan, trace: "Trace | None") -> Report:
    """Return the parts of a report that ``measure_server`` makes; progress is shown meanwhile."""
    from trtllm_lite.bench.http_bench import measure_server
    from trtllm_lite.common.progress import progress_bars

    with progress_bars() as show:
        return measure_server(
            plan.served.server,
            plan.workload,
            plan.prompts,
            plan.asking,
            plan.objectives,
            plan.price_per_hour,
            on_finished=lambda done, total: show("requests", done, total),
            trace=trace,
            **plan.sending,
        )


def _conclude(results: Results, report: Report, num_requests: int, *, allow_errors: bool) -> None:
    """Write the report, and judge it if it has figures. Raises ArgumentError for failed requests that are not allowed.

    If no request succeeded, failures are never allowed.
    """
    failed = report["figures"]["failed_requests"]
    if failed == num_requests or (failed and not allow_errors):
        results.write([report])
        rest = "" if failed == num_requests else "; --allow_errors accepts the figures of the others"
        raise ArgumentError(f"{failed} of {num_requests} requests failed{rest}")
    results.finish([report])


def _print(num_requests: int, arrival: str, report: Report) -> None:
    from trtllm_lite.cli.bench.tables import print_figures
    from trtllm_lite.cli.console import print_table
    from trtllm_lite.common.units import counted

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
            "client may be the bottleneck: raise --num_client_processes",
            err=True,
        )
