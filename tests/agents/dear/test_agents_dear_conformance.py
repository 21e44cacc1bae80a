"""Impostors that are no dummies: fixed policies, good as they are, must not pass for a learned controller."""

import pytest

from steelyard.agents.dear.conformance import acceptance
from steelyard.agents.dear.policies import CritiqueAll, FullyConnected


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (CritiqueAll(), "call-units a debate"),  # right more often than MAD, but not for less than MAD with early stop
        (FullyConnected(early_stop="unanimous"), "nothing is to be gained"),  # passes on the simulator, not on control
    ],
)
def test_fixed_policies_are_found_out(policy, said):
    with pytest.raises(AssertionError, match=said):
        acceptance(lambda backend, seed: policy)
