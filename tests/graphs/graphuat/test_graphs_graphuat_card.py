"""The card: a complete ledger, settings that are the parts' own defaults, claims on what the bench runs."""

from __future__ import annotations

import inspect

import pytest

from steelyard.card import decision_of
from steelyard.graphs.graphuat import conformance
from steelyard.graphs.graphuat.attribution import REFERENCE_NODES, Settings
from steelyard.graphs.graphuat.bench import BENCH, PARAMS
from steelyard.graphs.graphuat.card import CARD
from steelyard.graphs.graphuat.csbm import generate_csbm
from steelyard.graphs.graphuat.planting import plant
from steelyard.graphs.graphuat.student import GraphUATStudent
from steelyard.graphs.graphuat.teachers import train_teacher

CONFIG = CARD.config()


def defaults(function):
    return {name: p.default for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty}


def test_the_ledger_is_complete():
    assert {f"d{number}" for number in range(1, 19)} == {decision.id for decision in CARD.decisions}
    fields = type(CONFIG).model_fields
    assert all(decision_of(type(CONFIG), name) for name in fields)


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (GraphUATStudent, ("strength", "tau", "budget", "backbone", "hidden", "layers", "epochs", "learning_rate")),
        (GraphUATStudent, ("loss",)),
        (Settings, ("hops", "fanout", "max_edges", "feature_method", "threshold", "coverage")),
        (plant, ("per_group", "extra_words", "extra_edges", "labels_left")),
    ],
)  # fmt: skip
def test_the_settings_are_the_parts_own_defaults(part, names):
    own = defaults(part)
    assert {name: getattr(CONFIG, name) for name in names} == {name: own[name] for name in names}


def test_the_bench_runs_the_settings():
    assert (PARAMS["epochs"], PARAMS["teacher_epochs"]) == (CONFIG.epochs, CONFIG.teacher_epochs)
    assert PARAMS["judged"] == CONFIG.judged
    assert CONFIG.reference_nodes == REFERENCE_NODES
    assert defaults(generate_csbm)["nodes"] == CONFIG.generated_nodes
    assert defaults(train_teacher)["epochs"] == CONFIG.teacher_epochs


def test_claims_cover_every_k_and_rival():
    ids = {claim.id for claim in CARD.claims}
    assert {f"drop_{k}_{arm}" for k in (1, 2, 3, 5) for arm in ("random", "saliency", "degree")} <= ids
    assert {"drop_teacher_entropy", "source_above_teacher_entropy", "shuffled_is_chance"} <= ids
    metrics = {metric.name for metric in BENCH.metrics}
    assert all(claim.metric in metrics for claim in CARD.claims)


def test_the_acceptance_test_refuses_a_wrong_number_of_names(monkeypatch):
    monkeypatch.setattr(conformance, "_planted", lambda seed: (_Made(), None, None, {4: "feature", 5: "structure"}))
    with pytest.raises(AssertionError, match="5 nodes got 2 sources"):
        conformance.acceptance(lambda *_: ["feature", "structure"])
    with pytest.raises(AssertionError, match="named at 67% of the nodes"):
        conformance.acceptance(lambda *_: ["feature", "structure", "structure", None, None])
    with pytest.raises(AssertionError, match="100% of the nodes that only look planted"):
        conformance.acceptance(lambda *_: ["feature", "structure", "coverage", "feature", "structure"])
    conformance.acceptance(lambda *_: ["feature", "structure", "coverage", "structure", "structure"])


class _Made:
    nodes = (1, 2, 3, 4, 5)
    sources = ("feature", "structure", "coverage", "clean", "clean")


def test_dummies_name_one_source_for_each_node():
    made = conformance._small(0)
    for name in ("constant", "random", "identity", "counting"):
        named = conformance.DUMMIES[name](made.teacher, made.graph, range(4), 0)
        assert len(named) == 4


@pytest.mark.parametrize("probe", ["noop", "effect", "resumed", "untouched"])
def test_probes(probe):
    one, other = getattr(conformance.CONFORMANCE, probe)()
    same = set(one) == set(other) and all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert same == (probe != "effect")
