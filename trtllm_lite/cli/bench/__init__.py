"""``trtllm-lite bench``: measurements of engines and servers as tables and as JSON, and comparisons with a baseline."""

import click

from trtllm_lite.cli.bench.latency import latency
from trtllm_lite.cli.bench.serve import serve
from trtllm_lite.cli.bench.serving import serve_sim, throughput
from trtllm_lite.cli.framework import Group


@click.group(cls=Group, short_help="Measure engines and servers.")
def bench() -> None:
    """Measure an engine or a server, and compare with earlier figures.

    \b
    Examples:
      trtllm-lite bench latency --engine_dir engine \\
        --batch_size 1,8 --input_len 128,1024
      trtllm-lite bench throughput --engine_dir engine --json baseline.json
      trtllm-lite bench throughput --engine_dir engine --compare baseline.json
      trtllm-lite bench serve-sim --engine_dir engine \\
        --arrival poisson --request_rate 4 --input_len sharegpt
      trtllm-lite bench serve --base_url http://localhost:8000 \\
        --vocab_size 32000 --arrival all --concurrency 16
    """


for command in (latency, throughput, serve_sim, serve):
    bench.add_command(command)
