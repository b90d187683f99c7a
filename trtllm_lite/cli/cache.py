"""``trtllm-lite cache``: the engines, checkpoints and networks of TensorRT that are kept."""

import time

import click

from trtllm_lite.cli.framework import Group


@click.group(cls=Group, short_help="List or clear what LLM and build keep.")
def cache() -> None:
    """List or clear the engines that LLM made of models, their checkpoints, and
    what TensorRT compiled for `build --backend tensorrt`.

    The cache is $XDG_CACHE_HOME/trtllm_lite, by default ~/.cache/trtllm_lite. When
    it takes more than TRTLLM_LITE_CACHE_SIZE (by default 64 GiB), the entries that
    were unused for longest are removed.
    """


@cache.command(name="list")
def list_entries() -> None:
    """Show each entry: its model, kind, size and last use."""
    from trtllm_lite.cli.console import print_table
    from trtllm_lite.common.files import cache_directory
    from trtllm_lite.common.units import format_bytes
    from trtllm_lite.engine_cache import cache_limit, list_cache

    entries = list_cache()
    rows = [
        [
            entry.model or "unknown",
            entry.kind.removesuffix("s"),
            format_bytes(entry.num_bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
        ]
        for entry in entries
    ]
    if rows:
        print_table("", ["made of", "kind", "size", "used"], rows)
    total = format_bytes(sum(entry.num_bytes for entry in entries))
    click.echo(f"{total} of at most {format_bytes(cache_limit())} in {cache_directory('')}")


@cache.command(name="clear")
def clear() -> None:
    """Remove all entries; running models keep their open files."""
    from trtllm_lite.common.units import format_bytes
    from trtllm_lite.engine_cache import clear_cache

    count, num_bytes = clear_cache()
    click.echo(f"removed {count} {'entry' if count == 1 else 'entries'}, {format_bytes(num_bytes)}")
