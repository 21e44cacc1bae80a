"""The adapter to the proxy: the conversation as it came, the client's own sampling, the vote record."""

from __future__ import annotations

import json

import pytest

from steelyard.errors import InputError, UnsupportedError
from steelyard.guard import DRSmoothing, NoDefence, SmoothingDefence, SmoothLLM
from steelyard.guard.dr_smoothing.ending import RequestEndedError
from steelyard.guard.dr_smoothing.openai import CompletionLM, as_messages

pytestmark = [
    pytest.mark.filterwarnings("ignore::steelyard.guard.dr_smoothing.result.SmoothingWarning"),
    pytest.mark.filterwarnings("ignore::steelyard.errors.NoEffectWarning"),
]
USER = "tell me how the clock in the tower works"
CHAT = [{"role": "system", "content": f"Rules: {USER}"}, {"role": "user", "content": USER}]


class Upstream:
    """Notes what the proxy would be asked."""

    def __init__(self, text="Sure"):
        self.text, self.calls = text, []

    def __call__(self, conversations, *, seeds=None, max_tokens=None):
        self.calls.append((list(conversations), seeds, max_tokens))
        return [self.text] * len(conversations)


def test_a_conversation_is_answered_by_a_vote():
    upstream = Upstream()
    answer = SmoothingDefence(DRSmoothing(n=5)).answer(CHAT, upstream)
    assert answer.text == "Sure"
    record = answer.extra["x_smoothing"]
    assert (record["votes"], record["n"], record["p_hat"], record["complied"]) == ([1] * 5, 5, 1.0, True)
    assert record["certified"] == 0
    assert json.dumps(answer.extra)
    ((conversations, seeds, max_tokens),) = upstream.calls
    assert all(conversation[0] == CHAT[0] for conversation in conversations)
    assert all(conversation[1]["content"] != USER for conversation in conversations)
    assert len(set(seeds)) == 5
    assert max_tokens is None  # the client's own limit holds


def test_equal_copies_are_not_merged_as_the_clients_temperature_is_not_known():
    upstream = Upstream()
    SmoothingDefence(DRSmoothing(disrupt=lambda text, rng: "same", rectify=None, n=4)).answer(CHAT, upstream)
    assert len(upstream.calls[0][0]) == 4


def test_early_judging_limits_the_copies_only():
    upstream = Upstream("I'm sorry")
    SmoothingDefence(SmoothLLM(n=3, judge_tokens=16)).answer(CHAT, upstream)
    assert [max_tokens for _, _, max_tokens in upstream.calls] == [16, None]
    assert [len(conversations) for conversations, _, _ in upstream.calls] == [3, 1]


def test_a_baseline_is_a_defence_too():
    upstream = Upstream()
    answer = SmoothingDefence(NoDefence()).answer(CHAT, upstream)
    assert upstream.calls[0][0] == [CHAT]
    assert answer.extra["x_smoothing"]["certified"] is None


def test_an_upstream_that_fails_fails_the_request():
    def broken(conversations, *, seeds=None, max_tokens=None):
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        SmoothingDefence(SmoothLLM(n=3)).answer(CHAT, broken)
    with pytest.raises(InputError, match="0 texts for 3"):
        SmoothingDefence(SmoothLLM(n=3)).answer(CHAT, lambda conversations, **_: [])
    with pytest.raises(InputError, match="no message with role user"):
        SmoothingDefence(SmoothLLM(n=3)).answer(CHAT[:1], Upstream())


def test_the_upstream_as_a_language_model():
    upstream = Upstream()
    lm = CompletionLM(upstream)
    assert lm.generate(["a", CHAT], seed=7, temperature=0.3) == ["Sure", "Sure"]
    assert upstream.calls == [([[{"role": "user", "content": "a"}], CHAT], [7, 8], None)]
    assert as_messages(CHAT) == CHAT
    with pytest.raises(InputError, match="n must be 1"):
        lm.generate(["a"], n=2)
    with pytest.raises(UnsupportedError):
        lm.logprobs(["a"], ["b"])
    with pytest.raises(UnsupportedError):
        lm.hidden_states(["a"], ["b"], [0])


def test_no_copy_is_drawn_for_a_request_that_has_ended():
    drawn = []

    class Closing(Upstream):
        @property
        def closed(self):
            return len(drawn) == 2

    def noise(text, rng):
        drawn.append(text)
        return text + " x"

    upstream = Closing()
    with pytest.raises(RequestEndedError):
        SmoothingDefence(DRSmoothing(disrupt=noise, rectify=None, n=9)).answer(CHAT, upstream)
    assert len(drawn) == 2
    assert not upstream.calls


def test_the_copies_of_a_guard_are_told():
    assert SmoothingDefence(DRSmoothing(n=7)).copies == 7
    assert SmoothingDefence(NoDefence()).copies == 1
