"""Carries out the checks of a build file: ``engine_checks.py reproducible|answers ENGINE``, with provenance.

``reproducible`` prints whether the engine should be built a second time (true, unless the file says false). ``answers``
generates from each prompt of the file with $TRTLLM_LITE, and fails unless the text contains the expected answer. It
needs only the standard library.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Carry out the command line."""
    what, engine = sys.argv[1], Path(sys.argv[2])
    statement = json.loads((engine / "provenance.json").read_text())
    checks = statement["predicate"]["buildDefinition"]["externalParameters"].get("checks", {})
    if what == "reproducible":
        print(json.dumps(checks.get(what, True)))
    else:
        _check_answers(engine, checks.get(what, {}))


def _check_answers(engine: Path, answers: dict[str, Any]) -> None:
    command = [os.environ.get("TRTLLM_LITE", "trtllm-lite"), "generate", "--engine_dir", str(engine)]
    for prompt, expected in answers.items():
        asked = [*command, f"--prompt={prompt}", "--max_new_tokens=16"]
        found = subprocess.run(asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
        if expected not in found:
            sys.exit(f"error: {engine} answers {prompt!r} with {found!r}, expected {expected!r} in it")


if __name__ == "__main__":
    main()
