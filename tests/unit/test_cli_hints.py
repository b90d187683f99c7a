"""The next command that `build` suggests can be pasted into a shell as it is."""

import shlex
from pathlib import Path

from click.testing import CliRunner

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from trtllm_lite.cli import cli


def test_paths_with_spaces_are_quoted(tmp_path: Path) -> None:
    engine = tmp_path / "my engine"
    limits = [f"--{name}={value}" for name, value in LIMITS.items()]
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen3")
    result = CliRunner().invoke(
        cli, ["build", "--checkpoint_dir", str(checkpoint), "--output_dir", str(engine), *limits]
    )
    assert result.exit_code == 0, result.output
    suggested = shlex.split(result.output.splitlines()[-1].removeprefix("next: "))
    assert suggested[suggested.index("--engine_dir") + 1] == str(engine)
