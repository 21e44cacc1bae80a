"""The card: every decision of the specification, claims that fit the bench, an honest reading, usage that runs."""

from __future__ import annotations

import json

import pytest

from steelyard.agents.goskills.bench import BENCH
from steelyard.agents.goskills.card import CARD
from steelyard.agents.goskills.claims import WORTH_HAVING
from steelyard.agents.goskills.config import Config
from steelyard.card import Source, decision_of


def test_every_decision_is_there_and_has_a_knob_where_it_is_ours():
    assert [decision.id for decision in CARD.decisions] == [f"S{number}" for number in range(1, 21)]
    for decision in CARD.decisions:
        assert (decision.knob is not None) or decision.source is not Source.RECON
    for field in Config.model_fields:
        assert decision_of(Config, field) in {decision.id for decision in CARD.decisions}


def test_claims_name_what_the_bench_has():
    arms, metrics = {arm.name for arm in BENCH.arms}, {metric.name for metric in BENCH.metrics}
    ids = [claim.id for claim in CARD.claims]
    assert len(set(ids)) == len(ids)
    for claim in CARD.claims:
        if not claim.paper_scale_only:
            assert claim.metric in metrics
            assert {name for name in (claim.arm, claim.versus) if isinstance(name, str)} <= arms


def test_the_rule_of_the_specification_is_among_the_claims():
    by_id = {claim.id: claim for claim in CARD.claims}
    assert by_id["gold_recall_over_gos_ppr"].margin == 0.05
    assert by_id["must_hit_with_backfill"].versus == 0.98
    assert by_id["must_hit_falls_without_backfill"].margin == 0.15
    assert by_id["four_fields"].metric == "fields"
    for rival in ("hybrid_backfill", "chunked_backfill"):  # the strongest trivial baselines
        assert by_id[f"gold_recall_over_{rival}"].margin == WORTH_HAVING
    assert {claim.id for claim in CARD.claims if claim.paper_scale_only} == {
        "reward_on_skillsbench", "reward_on_alfworld", "agent_runtime"}  # fmt: skip


def test_no_claim_rests_on_the_simulated_agent():
    assert not [claim for claim in CARD.claims if claim.metric == "simulated"]
    assert "SIMULATED" in next(metric.label for metric in BENCH.metrics if metric.name == "simulated")


@pytest.mark.parametrize(
    "words",
    ["A seed is a fold of tasks", "1.00 by construction", "Most of the gain", "96 tokens", "simulated agent is a rule",
     "287 skills", "weak labels", "never tuned", "support groups changed next to no selection"],
)  # fmt: skip
def test_limits_say_what_is_unflattering(words):
    assert words in " ".join(CARD.limits)


def test_card_is_json_and_its_usage_runs(capsys):
    json.dumps(CARD.model_dump(mode="json"))
    exec(compile(CARD.usage, "usage", "exec"), {})
    assert capsys.readouterr().out.startswith("# EXECUTION CONTRACT")
