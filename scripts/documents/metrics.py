"""Writes the reference of /metrics, from the server's output for a model with all features."""

from collections import Counter
from types import SimpleNamespace

import numpy as np

from documents.plain_text import escaped
from documents.variants import markdown
from trtllm_lite.runtime.session.experts import ExpertCounts
from trtllm_lite.runtime.session.stats import TOKEN_GAP_BOUNDS, LatencyLog, Speculation, Stats
from trtllm_lite.serve import metrics
from trtllm_lite.serve.metrics.encoder_metrics import add_encoder
from trtllm_lite.serve.metrics.families import Families
from trtllm_lite.serve.metrics.model_metrics import add_model
from trtllm_lite.serve.metrics.sequences import SequenceCounts
from trtllm_lite.serve.metrics.server_metrics import ServerMetrics
from trtllm_lite.serve.metrics.texts import TextCounts

COMMON = ("model_name", "engine", "engine_type")  # labels of all metrics of models


def metrics_reference() -> str:
    """The package's remarks on its names, and a row for each metric."""
    server = ServerMetrics([SimpleNamespace(add_metrics=_add_all)])
    server.count_request("POST", "/v1/completions", 200, 0.1)
    rows = []
    for family in server.collect():
        labels = sorted({label for sample in family.samples for label in sample.labels} - {*COMMON, "le"})
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append([f"`{name}`", family.type, " ".join(f"`{label}`" for label in labels), family.documentation])
    table = markdown(("name", "type", "further labels", "meaning"), sorted(rows))
    notes = escaped((metrics.__doc__ or "").replace("``", "`").strip())
    return f"{table}\n\n## Names\n\n{notes}\n"


def _add_all(families: Families) -> None:
    """Add the metrics of a decoder with adapters, draft tokens and experts, and of an encoder."""
    add_model(families, _model())  # type: ignore[arg-type]
    embedder = SimpleNamespace(stats=_stats)
    encoder = SimpleNamespace(
        name="encoder", embedder=embedder, counts=TextCounts(1024), num_rejected=Counter(queue_full=0)
    )
    add_encoder(families, encoder)  # type: ignore[arg-type]


def _stats() -> Stats:
    numbers = dict.fromkeys(Stats.__dataclass_fields__, 0)
    numbers |= {"speculation": Speculation(1, (1,), (1,)), "latencies": LatencyLog().overall()}
    numbers["reached_tokens"] = numbers["host_tokens"] = (0,)  # type: ignore[assignment]
    return Stats(**numbers)  # type: ignore[arg-type]


def _model() -> SimpleNamespace:
    session = SimpleNamespace(
        stats=_stats,
        expert_counts=lambda: [ExpertCounts(np.zeros(2, np.int64), (0,), 0, 0)],
        adapters=SimpleNamespace(in_use=lambda: ([], []), max_loras=0),
        limits=SimpleNamespace(tokens_per_block=0, num_blocks=0, num_host_blocks=0),
        manifest=SimpleNamespace(kv_cache=SimpleNamespace(dtype="", groups=[SimpleNamespace(name="")])),
        pump=SimpleNamespace(token_gaps=lambda: ([0] * (len(TOKEN_GAP_BOUNDS) + 1), 0.0)),
    )
    return SimpleNamespace(
        name="model",
        session=session,
        counts=SequenceCounts(1024),
        num_rejected=Counter(queue_full=0),
        empty_answers=Counter(stop=0),
        tool_parses=Counter(success=0),
    )
