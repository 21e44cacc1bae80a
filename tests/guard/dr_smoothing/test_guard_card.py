"""The card and its ledger: complete, and its snippet runs."""

from __future__ import annotations

import json

from steelyard.card import Source, decision_of
from steelyard.guard.dr_smoothing.arms import ARMS
from steelyard.guard.dr_smoothing.card import CARD, Config


def test_every_decision_of_the_reconstruction_is_there():
    ids = [decision.id for decision in CARD.decisions]
    assert {f"D{number}" for number in range(1, 19)} | {"D4b"} <= set(ids)
    for decision in CARD.decisions:
        assert decision.knob is not None or decision.source is not Source.RECON
    for field in Config.model_fields:
        assert decision_of(Config, field) in ids
    json.dumps(CARD.model_dump(mode="json"))


def test_claims_include_the_unflattering_ones():
    ids = {claim.id for claim in CARD.claims}
    assert {"asr_below_rectify_only", "adaptive_below_rectify_only", "fidelity_over_unrectified", "half_of_the_gap",
            "benign_near_undefended", "natural_below_undefended"} <= ids  # fmt: skip
    assert {claim.id for claim in CARD.claims if claim.paper_scale_only} == {"vicuna_gcg", "instructions"}


def test_arms_are_settings_of_the_config():
    names = [arm.name for arm in ARMS]
    assert len(set(names)) == len(names)
    for arm in ARMS:
        if not arm.derived:
            Config(**arm.config)


def test_usage_runs(capsys):
    scope = {}
    exec(compile(CARD.usage, "usage", "exec"), scope)
    assert len(scope["answer"].votes) == 9
    assert capsys.readouterr().out
