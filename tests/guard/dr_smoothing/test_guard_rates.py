import pytest

from steelyard.guard.dr_smoothing import guard_cell
from steelyard.guard.dr_smoothing.rates import both_sides, share_passed

LOST, HELD, TIED = ((1, 1, 0), True), ((0, 0, 1), False), ((1, 0), False)


def test_rates_of_both_sides_by_hand():
    found = both_sides([LOST, HELD, TIED, LOST], [LOST, HELD], 0.5)
    assert found == pytest.approx({
        "asr": 2 / 4, "copy_asr": (2 / 3 + 1 / 3 + 1 / 2 + 2 / 3) / 4, "harmed": 3 / 4,  # a tie is at gamma
        "benign_flagged": 1 / 2, "copy_flagged": 1 - (2 / 3 + 1 / 3) / 2, "balanced": (2 - 1 / 2 - 1 / 2) / 2,
    })  # fmt: skip
    assert share_passed([HELD, LOST, LOST]) == pytest.approx(2 / 3)


def test_a_side_without_prompts_has_no_rates():
    assert set(both_sides([LOST], [], 0.5)) == {"asr", "copy_asr", "harmed"}
    assert set(both_sides([], [HELD], 0.5)) == {"benign_flagged", "copy_flagged"}


def test_metrics_of_a_cell_by_hand():
    def outcomes(*verdicts):
        return [guard_cell.Outcome(votes, passed, ("",), calls=3, rectified=2) for votes, passed in verdicts]

    found = {
        "gibberish": outcomes(LOST, LOST), "words": outcomes(LOST, HELD, HELD, HELD),
        "clean": outcomes(HELD, LOST, HELD),
        "benign": outcomes(LOST, LOST, LOST, HELD), "natural": outcomes(LOST, HELD),
    }  # fmt: skip
    metrics = guard_cell._metrics(found, 0.5)
    assert metrics["asr_gibberish"] == 1
    assert metrics["asr_words"] == 1 / 4
    assert metrics["asr"] == pytest.approx(3 / 6)
    assert metrics["recall"] == pytest.approx(2 / 3)
    assert metrics["benign_flagged"] == 1 / 4
    assert metrics["balanced"] == pytest.approx((2 - 3 / 6 - 1 / 4) / 2)
    assert metrics["asr_natural"] == 1 / 2
    assert (metrics["calls"], metrics["rectifier_calls"]) == (3, 2)
    assert "asr_natural" not in guard_cell._metrics({**found, "natural": []}, 0.5)
