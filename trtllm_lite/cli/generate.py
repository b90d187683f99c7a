"""``trtllm-lite generate``: prints an answer token by token."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from trtllm_lite.cli.foreign_options import foreign_options
from trtllm_lite.cli.framework import Command
from trtllm_lite.common.units import counted
from trtllm_lite.foreign_names.commands import GENERATE
from trtllm_lite.request_fields.field import fields_of
from trtllm_lite.request_fields.fields import RequestFields

if TYPE_CHECKING:
    from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams


def _request_options(command: Callable[..., None]) -> Callable[..., None]:
    """A decorator that adds the options that ``ModelRunner.generate`` takes unchanged."""
    for name, field in reversed(fields_of(RequestFields).items()):
        if (option := field.option) is not None:
            add = click.option(f"--{field.runner or name}", type=option.type, help=option.help or field.doc)
            command = add(command)
    return command


@click.command(cls=Command, short_help="Generate text with an engine.")
@click.argument("engine", required=False)
@click.option(
    "--engine_dir", metavar="ENGINE", help="Directory that `build` wrote, if it is not given as the argument."
)
@click.option("--prompt", required=True, help="The text to continue, or with --chat a message; - reads stdin.")
@click.option("--chat", is_flag=True, help="Put the prompt through the model's chat template.")
@click.option("--chat_template", metavar="NAME", help="With --chat: one of the model's templates. [default: default]")
@click.option("--max_new_tokens", default=64, show_default=True, help="Maximum number of tokens to generate.")
@_request_options
@click.option("--stop_words", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--bad_words", multiple=True, help="Text that must not appear; may be given several times.")
@click.option("--guided_json", metavar="FILE", type=click.File("rb"), help="Answer with JSON of this JSON schema.")
@click.option("--guided_regex", metavar="REGEX", help="Answer with a text that this expression matches.")
@click.option("--guided_grammar", metavar="FILE", type=click.File("rb"), help="Answer with text of this Lark grammar.")
@click.option("--guided_choice", multiple=True, help="Answer with this text; given several times, with one of them.")
@click.option(
    "--num_beams", default=1, show_default=True, help="Search with this many beams; the answer comes at the end."
)
@click.option("--lora_dir", metavar="DIR", help="Adapter that PEFT wrote, for engines built with --max_lora_rank.")
@click.option("--num_threads", type=int, help="Threads that compute on the CPU. [default: all cores]")
@foreign_options(GENERATE)
def generate(
    engine: str | None,
    engine_dir: str | None,
    prompt: str,
    max_new_tokens: int,
    stop_words: tuple[str, ...],
    bad_words: tuple[str, ...],
    guided_json: BinaryIO | None,
    guided_regex: str | None,
    guided_grammar: BinaryIO | None,
    guided_choice: tuple[str, ...],
    num_beams: int,
    lora_dir: str | None,
    num_threads: int | None,
    **options: Any,
) -> None:
    """Generate text with an engine; it streams to stdout, and timings go to stderr.

    \b
    Examples:
      trtllm-lite generate engine --chat --prompt "Why is it blue?"
      trtllm-lite generate engine --prompt - < story.txt
      trtllm-lite generate engine --prompt "Once upon" \\
        --temperature 0.8 --top_p 0.9 --random_seed 1
    """
    from trtllm_lite.runtime import ModelRunner

    path = _only(engine, engine_dir)
    form = _form(
        json=guided_json and _content(guided_json),
        regex=guided_regex,
        grammar=guided_grammar and _content(guided_grammar),
        choice=list(guided_choice) or None,
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    begin = time.perf_counter()
    runner = ModelRunner.from_dir(
        path, lora_dir=lora_dir, max_batch_size=_batch_size(path, num_beams), num_threads=num_threads
    )
    loaded = time.perf_counter()
    stream = runner.generate(
        [text],
        max_new_tokens=max_new_tokens,
        stop_words_list=list(stop_words) or None,
        bad_words_list=list(bad_words) or None,
        guided_decoding=form,
        lora_uids=None if lora_dir is None else "0",
        num_beams=num_beams,
        num_return_sequences=1,
        streaming=True,
        return_dict=True,
        **options,
    )
    first, printed, result = 0.0, 0, {}
    for result in stream:
        first = first or time.perf_counter()  # the first token; a beam search gives all of its text at once
        click.echo(result["texts"][0][printed:], nl=False)
        sys.stdout.flush()
        printed = len(result["texts"][0])
    end = time.perf_counter()
    click.echo()
    click.echo(_timing(result, num_beams > 1, loaded - begin, first - loaded, end - first), err=True)


def _only(engine: str | None, engine_dir: str | None) -> str:
    """The engine, which is given by itself or as an option. Raises click.UsageError unless it is given once."""
    found = [path for path in (engine, engine_dir) if path is not None]
    if len(found) != 1:
        raise click.UsageError(
            f"{'two engines are' if found else 'no engine is'} given: expected ENGINE, or --engine_dir"
        )
    return found[0]


def _form(**fields: Any) -> "GuidedDecodingParams | None":
    """The restriction of the answer; None if ``fields`` gives none."""
    from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams

    return GuidedDecodingParams(**fields) if any(value is not None for value in fields.values()) else None


def _content(file: BinaryIO) -> str:
    try:
        return file.read().decode()
    except UnicodeDecodeError as error:
        raise click.FileError(file.name, f"expected UTF-8, found another byte at {error.start}") from error


def _batch_size(engine_dir: str, num_beams: int) -> int:
    """Places in the batch for a beam search: at most the engine's, so that the error for more names the beams."""
    if num_beams <= 1:
        return 1
    from pathlib import Path

    from trtllm_lite.engine.reader import read_engine

    return min(num_beams, read_engine(Path(engine_dir)).manifest.limits.max_batch_size)


def _timing(result: dict[str, Any], searched: bool, load: float, first: float, rest: float) -> str:
    prompt_tokens = result["prompt_lengths"][0]
    count = result["sequence_lengths"][0][0] - prompt_tokens
    rate = f", then {(count - 1) / rest:.1f} tok/s" if count > 1 and not searched else ""
    reason = {"length": "max_new_tokens reached", "end_id": "end of sequence", "stop_words": "stop word"}
    return (
        f"[loaded in {load:.2f} s; {counted(prompt_tokens, 'prompt token')}; first token after {first:.2f} s{rate}; "
        f"{counted(count, 'token')}: {reason[result['finish_reasons'][0][0]]}]"
    )
