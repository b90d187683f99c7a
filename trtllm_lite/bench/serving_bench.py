"""Carries out ``bench throughput`` and ``bench serve-sim``: a workload on a freshly loaded engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite.bench.adapters import check_adapters, make_up_adapters
from trtllm_lite.bench.figures import cost_figures, goodput_figures, priority_figures, serving_figures
from trtllm_lite.bench.floor import Ceilings, serving_floor
from trtllm_lite.bench.mixtures import routing_figures
from trtllm_lite.bench.serving import OnFinished, Run, host_figure, serve
from trtllm_lite.bench.timeline import timeline
from trtllm_lite.bench.trace import Trace, TracedRun
from trtllm_lite.bench.workload import AdaptedWorkload, PlannedRequest, Workload, in_turn
from trtllm_lite.engine.reader import read_engine, read_stages
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.api.configs import speculation_of
from trtllm_lite.runtime.session.experts import routing
from trtllm_lite.runtime.session.limits import RunnerLimits
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.session.stats import Speculation
from trtllm_lite.runtime.text.tokenizer import Tokenizer

_WARM_UP_TOKENS = 64


def measure_serving(
    engine_dir: str | Path,
    workload: Workload,
    runtime: Mapping[str, Any],
    objectives: Mapping[str, float],
    price_per_hour: float | None,
    ceilings: Ceilings,
    on_finished: OnFinished,
    tokenizer: str | None = None,
    trace: Trace | None = None,
) -> dict[str, Any]:
    """Run ``workload`` on the engine, loaded with ``runtime`` (arguments of ``ModelRunner.from_dir``).

    ``tokenizer`` is a directory whose tokenizer.json replaces the engine's own; engines without weights have none.
    ``trace`` collects the run, with its steps.

    Returns parts of a report: ``figures`` by name, ``by_priority`` with the latencies of each priority, if there are
    several, and the ``timeline``. ``objectives`` are in seconds by name (see ``figures.parse_objectives``). If draft
    tokens are ``synthetic``, which need the output of an earlier run, the workload runs once before it is measured, and
    each request repeats one token. The adapters of an :class:`AdaptedWorkload` are in the device's memory before
    anything is measured. Raises LimitError if a request of the workload exceeds a limit of the engine, before any
    runs.
    """
    slots: dict[str, Any] = {}
    if isinstance(workload, AdaptedWorkload):
        check_adapters(read_engine(Path(engine_dir)).manifest, workload)
        slots = {"max_loras": workload.num_loras, "max_cpu_loras": workload.num_loras}
    runner = ModelRunner.from_dir(engine_dir, **runtime, **slots)
    _take_tokenizer(runner.session, workload, tokenizer)
    requests = workload.requests(runner.session.manifest.model.vocab_size, runner.limits)
    warming_up = _warm_up(min(len(requests), runner.limits.max_batch_size), runner.limits)
    if isinstance(workload, AdaptedWorkload):
        make_up_adapters(runner.session, engine_dir, workload)
        times = -(-workload.num_loras // len(warming_up))  # so often that each adapter is used
        warming_up = in_turn(warming_up * times, workload.num_loras)
    serve(runner.session, warming_up)
    speculation = speculation_of(runtime.get("speculative_config"))
    if speculation is not None and speculation.method == "synthetic":
        requests = [replace(request, only_token=0) for request in requests]
        serve(runner.session, requests, concurrency=workload.concurrency)
    run = serve(
        runner.session,
        requests,
        concurrency=workload.concurrency,
        on_finished=on_finished,
        record_steps=trace is not None,
    )
    if trace is not None:
        trace.runs.append(TracedRun(f"{len(requests)} requests, {workload.arrival}", run.records, run.recorded))
    figures = {**serving_figures(run.records, run.seconds), **_engine_figures(run)}
    figures |= _floors(engine_dir, runner, requests, ceilings, run)
    figures |= goodput_figures(run.records, run.seconds, objectives)
    figures |= cost_figures(figures, price_per_hour)
    return {
        "figures": figures,
        "by_priority": priority_figures(run.records),
        "timeline": timeline(run.records),
    }


def _floors(
    engine_dir: str | Path, runner: ModelRunner, requests: Sequence[PlannedRequest], ceilings: Ceilings, run: Run
) -> dict[str, Any]:
    """What routers have chosen, and how near the run comes to the ceilings."""
    routed = routing(run.experts)
    share = None if routed is None else routed.share_read
    stages, most = read_stages(Path(engine_dir)), runner.limits.max_batch_size
    return {
        **routing_figures(routed, runner.session.manifest.mapping.moe_ep_size),
        **serving_floor(stages, requests, most, ceilings, run.seconds, share),
    }


def _take_tokenizer(session: Session, workload: Workload, tokenizer: str | None) -> None:
    """Give ``session`` the tokenizer that the texts of ``workload`` need. Raises ArgumentError if there is none."""
    if tokenizer is not None:
        session.tokenizer = Tokenizer.from_files(Path(tokenizer))
    if workload.detokenize and session.tokenizer is None:
        raise ArgumentError(
            "this engine has no tokenizer to make texts with: give a directory that has one as tokenizer, or measure "
            "token ids alone with skip_tokenizer_init"
        )


def _warm_up(batch_size: int, limits: RunnerLimits) -> list[PlannedRequest]:
    """Requests that end one after the other, so that batches of many sizes are used for the first time."""
    longest = min(_WARM_UP_TOKENS, limits.max_output_len, limits.max_seq_len - 1, limits.cache_len - 1)
    lengths = [1 + row * longest // batch_size for row in range(batch_size)]
    return [PlannedRequest(0.0, np.zeros(1, np.int32), length, detokenize=False) for length in lengths]


def _engine_figures(run: Run) -> dict[str, Any]:
    return {
        "kv_use_mean": float(np.mean(run.kv_use)),
        "kv_use_peak": max(run.kv_use),
        "steps": run.steps,
        "output_tokens_per_step": sum(len(tokens) for tokens in run.outputs) / run.steps,
        "host_s_per_step": run.host_s_per_step,
        **host_figure([run]),
        **_speculation_figures(run.speculation),
    }


def _speculation_figures(speculation: Speculation) -> dict[str, Any]:
    """The share of accepted draft tokens by position from 1, and tokens per row with drafts; empty without any."""
    if not speculation.num_drafts:
        return {}
    places = enumerate(zip(speculation.acceptance, speculation.num_drafted, strict=True), 1)
    return {f"acceptance_{place}": share for place, (share, drafted) in places if drafted} | {
        "mean_acceptance_length": speculation.tokens_per_step
    }
