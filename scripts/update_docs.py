"""Writes the generated parts of README.md and of docs/.

``documents/parts.py`` lists the generated parts. ``--record NAME REPORT…`` stores reports in configs/baselines first. A
baseline file is a list of reports that ``trtllm-lite bench … --json`` wrote on one machine; ``--compare`` takes it.
Reports of accuracy (``--record_accuracy NAME REPORT…``) come from ``trtllm-lite eval … --json``, reports of the server
(``--record_server NAME DIRECTORY``) from ``measure_server.sh``, of several ranks (``--record_ranks NAME DIRECTORY``)
from ``measure_ranks.sh``, of mixtures of experts (``--record_experts NAME DIRECTORY``) from ``measure_experts.sh``, of
hybrids (``--record_hybrids NAME DIRECTORY``) from ``measure_hybrids.sh``, of models' shapes on CPUs (``--record_shapes
NAME DIRECTORY``) from ``measure_cpu_shapes.sh``, and of collectives (``--record_collectives NAME FILE…``) from
``tests.gpu.bench_collectives``.
"""

import argparse
from pathlib import Path

from documents.accuracy import record_accuracy
from documents.collectives import record_collectives
from documents.measured import BASELINES, record, record_all
from documents.parts import filled, pages
from documents.ranks import record_ranks, record_shapes
from documents.server import record_server


def main() -> None:
    """Record reports if asked to, then write the generated parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", metavar="NAME")
    parser.add_argument("--record_accuracy", metavar="NAME")
    parser.add_argument("--record_server", metavar="NAME")
    parser.add_argument("--record_ranks", metavar="NAME")
    parser.add_argument("--record_collectives", metavar="NAME")
    parser.add_argument("--record_experts", metavar="NAME")
    parser.add_argument("--record_hybrids", metavar="NAME")
    parser.add_argument("--record_shapes", metavar="NAME")
    parser.add_argument("--commit", help="commit of the measured sources, if they were not a checkout of git")
    parser.add_argument("reports", nargs="*", type=Path)
    store(parser.parse_args())
    for page in pages():
        page.write_text(filled(page.read_text()))


def store(options: argparse.Namespace) -> None:
    """Put the reports that were given into configs/baselines."""
    reports, commit = options.reports, options.commit
    if options.record:
        record(options.record, reports, commit)
    if options.record_accuracy:
        record_accuracy(BASELINES / f"accuracy-{options.record_accuracy}.json", reports, commit)
    if options.record_server:
        (directory,) = reports
        record_server(BASELINES / f"server-{options.record_server}.json", directory, commit)
    if options.record_ranks:
        (directory,) = reports
        record_ranks(BASELINES / f"ranks-{options.record_ranks}.json", directory, commit)
        record_shapes(BASELINES / f"shapes-of-ranks-{options.record_ranks}.json", directory, commit)
    if options.record_collectives:
        record_collectives(BASELINES / f"collectives-{options.record_collectives}.json", reports, commit)
    if options.record_experts:
        (directory,) = reports
        record_all(BASELINES / f"experts-{options.record_experts}.json", directory, commit)
    if options.record_hybrids:
        (directory,) = reports
        record_all(BASELINES / f"hybrids-{options.record_hybrids}.json", directory, commit)
    if options.record_shapes:
        (directory,) = reports
        record_all(BASELINES / f"shapes-{options.record_shapes}.json", directory, commit)


if __name__ == "__main__":
    main()
