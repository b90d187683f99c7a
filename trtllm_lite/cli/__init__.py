"""The command line ``trtllm-lite``. Every command imports what it needs when it runs, so that --help is immediate."""

import gc

import click

from trtllm_lite import __version__
from trtllm_lite.cli.bench import bench
from trtllm_lite.cli.build import build, plan
from trtllm_lite.cli.cache import cache
from trtllm_lite.cli.convert import convert
from trtllm_lite.cli.eval import evaluate
from trtllm_lite.cli.framework import Group
from trtllm_lite.cli.generate import generate
from trtllm_lite.cli.inspect import inspect
from trtllm_lite.cli.pull import pull
from trtllm_lite.cli.push import push
from trtllm_lite.cli.quantize import quantize
from trtllm_lite.cli.serve import serve
from trtllm_lite.cli.sign import sign
from trtllm_lite.cli.triton_repo import triton_repo
from trtllm_lite.cli.verify import verify


@click.group(cls=Group, name="trtllm-lite")
@click.version_option(__version__, prog_name="trtllm-lite")
def cli() -> None:
    """Compile language models ahead of time, and run them.

    \b
    The three steps:
      1. trtllm-lite convert  --model_dir MODEL --output_dir CKPT
      2. trtllm-lite build    --checkpoint_dir CKPT --output_dir ENGINE
      3. trtllm-lite generate --engine_dir ENGINE --prompt "Once upon"

    `quantize` makes a smaller checkpoint after step 1, `plan` predicts memory before step 2, `inspect` describes a
    checkpoint or an engine, `sign` signs the provenance of an engine and `verify` checks it, `push` and `pull` take it
    to and from a registry, `triton-repo` makes a model repository for Triton of it, `serve` answers requests over HTTP,
    `eval` and `bench` measure how well and how fast an engine predicts, `cache` lists and clears the engines that LLM
    makes by itself. Options may be spelled with _ or -.
    """


_OBJECTS_BETWEEN_SEARCHES = 1_000_000


for command in (
    *(
        convert,
        quantize,
        plan,
        build,
        generate,
        serve,
        inspect,
        verify,
        sign,
        push,
        pull,
        triton_repo,
        evaluate,
        bench,
        cache,
    ),
):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script, whose process runs one command and ends.

    A build creates hundreds of thousands of objects, of which hardly any need the cycle collector. Running the
    collector as often as Python does by default, and once more at the end, took a quarter of the time.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
    try:
        cli()
    finally:
        gc.freeze()  # the system frees the memory faster than a collection at exit
