"""The card: every decision of the specification, claims that fit the bench, usage that runs."""

from __future__ import annotations

import json

import pytest

from steelyard.card import Source, decision_of
from steelyard.guard.discrepancy.bench import BENCH
from steelyard.guard.discrepancy.card import CARD
from steelyard.guard.discrepancy.config import Config


def test_every_decision_is_there_and_has_a_knob_where_it_is_ours():
    ids = [decision.id for decision in CARD.decisions]
    assert ids == [f"E{number}" for number in range(1, len(ids) + 1)]
    assert len(ids) >= 13
    for decision in CARD.decisions:
        assert (decision.knob is not None) or decision.source is not Source.RECON
    for field in Config.model_fields:
        assert decision_of(Config, field) in ids


def test_only_the_sign_and_the_idea_are_the_papers():
    assert [decision.id for decision in CARD.decisions if decision.source is Source.PAPER] == ["E6"]
    assert "abstract only" in CARD.paper.basis.lower()


def test_claims_name_what_the_bench_has():
    arms, metrics = {arm.name for arm in BENCH.arms}, {metric.name for metric in BENCH.metrics}
    for claim in CARD.claims:
        assert claim.metric in metrics
        assert {name for name in (claim.arm, claim.versus) if isinstance(name, str)} <= arms
    ids = [claim.id for claim in CARD.claims]
    assert {"above_chance", "above_chance_rouge", "a_fifth_of_the_cost", "above_max_nll", "above_length"} <= set(ids)
    assert sum(name.startswith("comparable_to_") for name in ids) == 5


def test_claims_on_live_answers_cannot_be_read_from_made_up_pairs():
    """Made-up pairs have metrics of their own, which only the claim about their artefact reads."""
    assert [claim.id for claim in CARD.claims if claim.metric.startswith("auroc_given")] == [
        "length_explains_made_up_pairs"
    ]


@pytest.mark.parametrize("words", ["length alone", "135", "HaluEval", "entailment", "Likelihoods count as free"])
def test_limits_say_what_is_unflattering(words):
    assert words in " ".join(CARD.limits)


def test_card_is_json_and_its_usage_runs(capsys):
    json.dumps(CARD.model_dump(mode="json"))
    exec(compile(CARD.usage, "usage", "exec"), {})
    assert capsys.readouterr().out.startswith("[")
