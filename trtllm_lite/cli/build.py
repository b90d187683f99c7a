"""``trtllm-lite build`` and ``trtllm-lite plan``: with the same flags one compiles, the other predicts memory."""

import json
import shlex
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.build_options import build_options, source_of, take_target
from trtllm_lite.cli.foreign_options import foreign_options
from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.option_types import Finite
from trtllm_lite.cli.quantize_options import (
    calibration_options,
    print_decisions,
    recipe_options,
    take_calibration,
    take_recipe,
)
from trtllm_lite.cli.unused_options import check_calibration_options, check_recipe_options
from trtllm_lite.common.vocabulary import GPU_MEMORY_FRACTION
from trtllm_lite.errors import BuildError
from trtllm_lite.foreign_names.commands import BUILD, PLAN

if TYPE_CHECKING:
    from trtllm_lite.builder import BuildLimits, Checkpoint
    from trtllm_lite.builder.memory import MemoryPlan
    from trtllm_lite.cli.build_file import BuildFile
    from trtllm_lite.engine.manifest import Manifest
    from trtllm_lite.workflows.exceptions import Kept


def _read_config(context: click.Context, _: click.Parameter, value: str | None) -> "BuildFile | None":
    """Read the build file, whose options apply if the command line does not give them."""
    if value is None:
        return None
    from trtllm_lite.cli.build_file import read_build_file

    try:
        config = read_build_file(Path(value), context.command)
    except BuildError as error:
        raise click.UsageError(str(error), context) from error
    context.default_map = dict(config.build)
    return config


@click.command(cls=Command)
@click.option(
    "--config",
    metavar="FILE.yaml",
    is_eager=True,
    callback=_read_config,
    help="Take the model and options from this file, such as those of configs/builds/; options given here override it.",
)
@build_options
@click.option(
    "--output_dir", required=True, metavar="ENGINE", help="Directory for the engine; an older one is replaced."
)
@click.option(
    "--provenance",
    is_flag=True,
    help="Write what the engine was made of beside it: provenance.json, an in-toto statement, for `verify`, and "
    "sbom.json, a bill of materials in CycloneDX.",
)
@click.option("--strip_plan", is_flag=True, help="Leave the weights out, for benchmarks: the GPU makes random ones.")
@click.option(
    "--input_timing_cache",
    metavar="FILE",
    help="Timings that were measured on a GPU of the target earlier. [default: those that come with the package]",
)
@click.option(
    "--output_timing_cache",
    metavar="FILE",
    help="Measure the products, of experts too, on this machine's GPU, write the timings to this file, and use them.",
)
@click.option("--fast_build", is_flag=True, help="Measure fewer sizes and candidates, and not at the power limit.")
@recipe_options
@calibration_options
@click.option(
    "--max_accuracy_loss",
    type=Finite(min=-100),
    metavar="PERCENT",
    help="Measure the rise of perplexity by quantization. If it is larger, keep what hurts most in full precision; "
    "build nothing if that is not enough.",
)
@foreign_options(BUILD)
def build(config: "BuildFile | None", checkpoint_dir: Path | None, **options: Any) -> None:
    """Compile a checkpoint into an engine.

    A build takes seconds and needs no GPU. The same checkpoint and flags give the same bytes. Nothing is written if
    anything fails.

    \b
    Example:
      trtllm-lite build --checkpoint_dir ckpt --output_dir engine \\
        --max_batch_size 8 --max_input_len 1024 --max_seq_len 2048
    Next:
      trtllm-lite generate --engine_dir engine --prompt "Once upon a time"
    """
    if config is None:
        _build(checkpoint_dir, checkpoint_dir, **options)
        return
    with config.located():
        if config.model is None:
            _build(checkpoint_dir, checkpoint_dir, **options)
            return
        if checkpoint_dir is not None or options["model_config"] is not None:
            raise click.UsageError("the build file has a section model: leave checkpoint_dir and model_config out")
        _convert_and_build(config.conversion(), options)


def _convert_and_build(model: dict[str, Any], options: dict[str, Any]) -> None:
    """Build from a model's checkpoint in the cache; ``model`` has the values of the options of `convert`."""
    from trtllm_lite.cli.convert import take_conversion
    from trtllm_lite.common.files import reading_model
    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.convert.mapping import find_model
    from trtllm_lite.convert.sources.pins import check_files
    from trtllm_lite.engine_cache import Conversion
    from trtllm_lite.workflows.cached_checkpoint import use_checkpoint

    for option in ("draft_model_dir", "target_model_dir"):
        if model[option] is not None:
            raise click.UsageError(f"{option}: build files convert one model alone; run `convert` with this option")
    conversion, name = take_conversion(model), model["model_dir"]
    sha256 = conversion.pop("sha256")
    with reading_model(name):
        source = find_model(name, conversion.pop("revision"))
        check_files(source, sha256)

    def build_of(checkpoint: "Checkpoint") -> None:
        _build(checkpoint, source, **options)

    with progress_bars() as report:
        use_checkpoint(source, name, Conversion(**conversion), report, build_of, sha256)


def _build(
    checkpoint: "Path | Checkpoint | None",
    read: Path | None,
    model_config: str | None,
    output_dir: str,
    qformat: str,
    max_accuracy_loss: float | None,
    provenance: bool,
    **limits: Any,
) -> None:
    """Build from a checkpoint or a model config; ``read`` is the model or checkpoint that the provenance names."""
    from trtllm_lite.builder import build_engine, plan_memory
    from trtllm_lite.cli.attestation import attest_build
    from trtllm_lite.common.files import require_replaceable
    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.common.units import counted, format_bytes
    from trtllm_lite.engine.contents import counted_expansions
    from trtllm_lite.engine.format import CONFIG_FILE
    from trtllm_lite.engine.state_facts import describe_states
    from trtllm_lite.workflows.exceptions import within_limit
    from trtllm_lite.workflows.quantize import decisions_of, is_calibrated, quantized, uncalibrated

    begin = time.perf_counter()
    recipe, calibration = take_recipe(qformat, limits), take_calibration(limits)
    check_recipe_options([recipe])
    check_calibration_options([recipe], measures=max_accuracy_loss is not None, strips=limits["strip_plan"])
    source = source_of(checkpoint, model_config)
    take_target(limits)
    require_replaceable(Path(output_dir), CONFIG_FILE)
    decisions, kept = decisions_of(source, recipe), None
    with ExitStack() as stack:
        report = stack.enter_context(progress_bars())
        if limits["strip_plan"]:
            source = uncalibrated(source, recipe)
        else:
            if max_accuracy_loss is not None or is_calibrated(source, recipe):  # raises later errors now
                plan_memory(uncalibrated(source, recipe), **_of_plan(limits))
            result = stack.enter_context(quantized(source, recipe, calibration, report))
            if max_accuracy_loss is not None:
                accurate = stack.enter_context(within_limit(result, max_accuracy_loss, report))
                result, limits["accuracy"], kept = accurate
                decisions = result.decisions
            source = result.checkpoint
        attest = partial(attest_build, source=read) if provenance else None
        manifest = build_engine(source, Path(output_dir), attest=attest, progress=report, **limits)
    memory, fused = manifest.memory, sum(fusion.fused for fusion in manifest.fusions)
    click.echo(
        f"built {output_dir} in {time.perf_counter() - begin:.1f} s: {manifest.model.architecture}, "
        f"{fused} of {counted(len(manifest.fusions), 'fusion')} made"
    )
    click.echo("limits: " + ", ".join(f"{name} {value}" for name, value in vars(manifest.limits).items()))
    longest = source.config.max_position_embeddings
    if limits["max_seq_len"] is None and manifest.limits.max_seq_len < longest:
        click.echo(
            f"note: the model takes up to {counted(longest, 'token')}, and max_seq_len is what memory holds beside the "
            "weights: --qformat of fewer bits, --kv_cache_dtype fp8 or --tp_size make room"
        )
    click.echo("memory: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in vars(memory).items()))
    for choice, count in counted_expansions(manifest.expansions).items():
        click.echo(f"expanded: {choice}, {count}")
    for line in describe_states(manifest.state_rounding, manifest.state_forms):
        click.echo(f"states: {line}")
    print_decisions(decisions)
    if kept is not None:
        _print_kept(kept, manifest)
    click.echo(f"next: {_next_step(manifest, output_dir)}")


def _print_kept(kept: "Kept", manifest: "Manifest") -> None:
    """Print what stays in full precision for the sake of accuracy, and what that costs."""
    from trtllm_lite.bench.machine import num_cores, read_bandwidth
    from trtllm_lite.builder.cuda.targets import memory_bandwidth
    from trtllm_lite.common.units import format_bytes

    named = ", ".join(map(str, kept.sites))
    target, more = manifest.target, kept.more_bytes
    if target.kind == "cpu":
        rates = {"this CPU": read_bandwidth(num_cores(), more)}
    else:
        rates = {arch: memory_bandwidth(arch) for arch in target.archs}
    times = ", ".join(f"{1e3 * more / rate:.3f} ms on {name}" for name, rate in rates.items())
    click.echo(
        f"kept in full precision: {kept.share:.1%} of the weights that the scheme quantizes; with the KL divergence of "
        f"each alone: {named}"
    )
    click.echo(f"a step reads {format_bytes(more)} more for them, at least {times}")


def _of_plan(limits: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``plan_memory``."""
    tuning = {"strip_plan", "input_timing_cache", "output_timing_cache", "fast_build", "device_memory"}
    return {name: value for name, value in limits.items() if name not in tuning}


def _next_step(manifest: "Manifest", output_dir: str) -> str:
    """The next step with the engine: how to run it here, or where to take it."""
    if not manifest.module.generates:
        given = "TEXTS" if manifest.model.tokenizer else "TOKEN_IDS_OF_TEXTS"
        return f"in Python, LLM({output_dir!r}).{manifest.module.use.method}({given})"
    directory = shlex.quote(output_dir)
    speaks = manifest.model.tokenizer and not manifest.stripped
    command = 'generate --prompt "Once upon a time"' if speaks else "bench latency"
    run = f"trtllm-lite {command} --engine_dir {directory}"
    if manifest.target.kind == "cpu" or _has_gpu():
        return run
    return f"copy {directory} to a machine with a GPU for {' or '.join(manifest.target.archs)}, and there: {run}"


def _has_gpu() -> bool:
    from trtllm_lite import _core
    from trtllm_lite.errors import DeviceError

    try:
        _core.cuda_device_memory()
    except DeviceError:
        return False
    return True


@click.command(cls=Command)
@build_options
@click.option("--num_threads", type=int, help="CPU threads at run time; each has scratch memory. [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@recipe_options
@foreign_options(PLAN)
def plan(
    checkpoint_dir: Path | None,
    model_config: str | None,
    qformat: str,
    as_json: bool,
    **limits: Any,
) -> None:
    """Predict the memory of an engine before building it.

    `plan` reads no weights and writes nothing. Its flags are those of `build`. With --device_memory, or on a machine
    with GPUs, it also reports the least --tp_size whose ranks fit.

    \b
    Example:
      trtllm-lite plan --checkpoint_dir ckpt \\
        --max_batch_size 8 --max_input_len 1024 --max_seq_len 2048
    """

    from trtllm_lite.builder import choose_limits, least_tp_size, plan_memory
    from trtllm_lite.builder.backends import backend_of
    from trtllm_lite.common.units import format_bytes
    from trtllm_lite.runtime.session.device import check_num_threads
    from trtllm_lite.workflows.quantize import uncalibrated

    take_target(limits)
    device_memory = limits.pop("device_memory")
    recipe = take_recipe(qformat, limits)
    check_recipe_options([recipe])
    types = ("kv_cache_dtype", "key_cache_dtype", "state_dtype")
    given = {name: limits.pop(name) for name in (*types, "target", "backend", "num_threads")}
    check_num_threads(given["num_threads"], on_gpu=backend_of(given["target"], given["backend"])[0].kind != "cpu")
    source = uncalibrated(source_of(checkpoint_dir, model_config), recipe)
    least, bounds = None, choose_limits(source, **given, **limits)
    if device_memory is not None:
        of_any = {name: value for name, value in limits.items() if name != "tp_size"}
        least = least_tp_size(source, device_memory, **given, **of_any)
        with suppress(BuildError):  # limits that do not fit are shown unchanged
            bounds = choose_limits(source, device_memory, **given, **limits)
    memory = plan_memory(source, **given, **{**limits, **bounds.given()})
    values = memory.to_dict() | ({} if device_memory is None else {"least_tp_size": least})
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    _print_memory(memory, bounds)
    if device_memory is not None:
        enough = "no --tp_size is enough" if least is None else f"--tp_size {least} is the least"
        click.echo(f"{format_bytes(device_memory)} a device: {enough}{_cache_in(memory, bounds, device_memory)}")


def _cache_in(memory: "MemoryPlan", bounds: "BuildLimits", device_memory: int) -> str:
    """The KV cache that fits beside the engine in GPUs of ``device_memory`` bytes, in words; empty if none fits."""
    from trtllm_lite.builder.fitting import cache_room
    from trtllm_lite.common.units import counted

    use, room = memory.cache_use, cache_room(memory, device_memory)
    if memory.num_threads or not use.groups or room < use.num_bytes:
        return ""
    num_tokens = min(memory.kv_cache, room) // use.num_bytes * bounds.max_seq_len
    share = f"{GPU_MEMORY_FRACTION:.0%} of it hold a KV cache of {counted(num_tokens, 'token')}"
    return f"; {share}, which all sequences share"


def _print_memory(memory: "MemoryPlan", bounds: "BuildLimits") -> None:
    """Print tables of a rank's memory, of all stages, of transfers between ranks, and of cache groups."""
    from trtllm_lite.cli.console import print_table

    values = memory.to_dict()
    rows = [[name, *_sizes(values[name]), text] for name, text in _meanings(memory, bounds).items()]
    print_table(_memory_title(bounds), ["", "", "bytes", "what for"], rows)
    if bounds.pp_size > 1:
        stages = [[str(number), *_sizes(size)] for number, size in enumerate(memory.stage_bytes)]
        print_table("memory of a rank by stage", ["", "", "bytes"], stages)
    if memory.link_bytes:
        links = [[name, *_sizes(size)] for name, size in memory.link_bytes.items()]
        how = "receives from the others by NCCL" if bounds.uses_nccl else "reads of the others' memory"
        print_table(f"what a rank {how} for a token", ["", "", "bytes"], links)
    use = memory.cache_use
    groups = [[group.name, group.describe()] for group in use.groups]
    print_table("cache groups", ["", ""], [*groups, ["in all", use.describe()]])


def _sizes(size: int) -> list[str]:
    from trtllm_lite.common.units import format_bytes

    return [format_bytes(size), f"{size:,}"]


def _meanings(memory: "MemoryPlan", bounds: "BuildLimits") -> dict[str, str]:
    """The purpose of each part of the memory."""
    from trtllm_lite.common.units import counted
    from trtllm_lite.common.vocabulary import DEFAULT_MAX_LORAS

    scratch = counted(memory.num_threads, "thread") if memory.num_threads else "a step"
    return {
        "weights": "mapped from the engine's file" if memory.num_threads else "copied to the GPU",
        "kv_cache": f"at most: {counted(bounds.max_batch_size, 'sequence')} of {counted(bounds.max_seq_len, 'token')}",
        "workspace": f"values and scratch of {scratch}",
        **({"adapters": f"{DEFAULT_MAX_LORAS} in use"} if memory.adapters else {}),
        "total": "",
    }


def _memory_title(limits: "BuildLimits") -> str:
    if limits.pp_size > 1:
        return f"predicted memory of a rank of the largest of {limits.pp_size} stages"
    return "predicted memory" if limits.tp_size == 1 else f"predicted memory of each of {limits.tp_size} ranks"
