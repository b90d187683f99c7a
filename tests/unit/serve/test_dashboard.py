"""The dashboard for Grafana asks for what /metrics exposes."""

import json
import re
from pathlib import Path

import pytest

from tests.unit.serve.served import ask

DASHBOARD = json.loads((Path(__file__).parents[3] / "configs/deploy/grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
NAME = re.compile(r"\b(?:vllm:|trtllm_|http_|process_)\w+")


@pytest.fixture(scope="module")
def exposed():
    """Names of samples with the names of their labels."""

    async def talk(server):
        server.loop.drafts = (1, [1], [1])
        await server.ask("GET", "/health")  # a first request, so that the counters are not empty
        return await server.ask("GET", "/metrics")

    lines = [line for line in ask(talk).body.decode().splitlines() if not line.startswith("#")]
    return {re.match(r"[\w:]+", line)[0]: set(re.findall(r'(\w+)="', line)) for line in lines}


def queries():
    yield from ((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"])
    yield from (
        (entry["name"], entry["definition"]) for entry in DASHBOARD["templating"]["list"] if "definition" in entry
    )


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_metrics_and_labels_of_queries_are_exposed(exposed, title, query):
    names = NAME.findall(query)
    assert names, title
    for name in names:
        assert name in exposed
    labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    assert labels <= set.union(*(exposed[name] for name in names))
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_panels_are_of_the_chosen_source_and_models(panel):
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
        of_models = [name for name in NAME.findall(target["expr"]) if name.startswith("vllm:")]
        assert target["expr"].count('{model_name=~"$model_name"') == len(of_models)


def test_panels_have_ids_and_places_of_their_own():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) == 23


def test_variables_choose_the_source_and_the_models():
    assert {entry["name"]: entry["type"] for entry in DASHBOARD["templating"]["list"]} == {
        "datasource": "datasource",
        "model_name": "query",
    }
