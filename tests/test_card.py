"""Cards: the ledger is complete or the card does not exist."""

import pytest
from pydantic import BaseModel, ValidationError

from steelyard.card import Card, Claim, Decision, Frozen, Source, decision_of, knob
from toys.coin.card import CARD


def made(**changes):
    fields = {name: getattr(CARD, name) for name in Card.model_fields}
    return Card(**{**fields, **changes})


def decision(**changes):
    return Decision(**{**CARD.decisions[0].model_dump(), **changes})


def test_a_complete_card():
    assert made() == CARD
    assert "config" not in CARD.model_dump()
    assert decision_of(CARD.config, "bias") == "C1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decisions": (decision(), decision())}, "card toys.coin: decision ids are not unique"),
        ({"decisions": (decision(id="C2"),)}, "config field 'bias' names no decision of the ledger"),
        ({"decisions": (decision(knob="weight"),)}, "knob 'weight' of C1 is not a config field"),
        (
            {"decisions": (decision(), decision(id="C2", source=Source.RECON, knob=None))},
            "reconstruction C2 has no knob",
        ),
        ({"unknown": 1}, "Extra inputs are not permitted"),
    ],
)
def test_an_incomplete_card(changes, said):
    with pytest.raises(ValidationError, match=said):
        made(**changes)


def test_fields_without_a_decision():
    class Bare(BaseModel):
        plain: int = 1

    assert decision_of(Bare, "plain") is None
    with pytest.raises(ValidationError, match="config field 'plain' names no decision"):
        made(config=Bare)


def test_cards_do_not_change():
    with pytest.raises(ValidationError):
        CARD.name = "other"
    with pytest.raises(ValidationError):
        CARD.config().bias = 2.0


CLAIM = {"id": "c", "text": "t", "metric": "m", "arm": "a", "versus": 1.0, "direction": "higher"}


def test_claims():
    assert Claim(**CLAIM).margin == 0.0
    assert Claim(**CLAIM, kind="equivalence", margin=0.1).kind == "equivalence"
    with pytest.raises(ValidationError, match="claim c: an equivalence claim needs a margin above 0"):
        Claim(**CLAIM, kind="equivalence")
    for wrong in ({"margin": -1.0}, {"direction": "up"}, {"scale": "log"}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            Claim(**{**CLAIM, **wrong})


def test_knobs_carry_constraints():
    class Config(Frozen):
        rate: float = knob("D1", 0.5, gt=0, lt=1)

    assert Config().rate == 0.5
    assert decision_of(Config, "rate") == "D1"
    with pytest.raises(ValidationError):
        Config(rate=1.0)


def test_the_card_as_text():
    from steelyard.report.card import card_markdown

    text = card_markdown(CARD)
    for part in (CARD.name, CARD.summary, CARD.claims[0].text, CARD.decisions[0].id):
        assert part in text
