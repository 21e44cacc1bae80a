"""ARC beside what no good model, verifier or file sends: blanks, other scripts, long texts, numbers too large."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.policy import (
    CommitmentFormat,
    CommitmentWrapper,
    EmbeddingVerifier,
    Evidence,
    HouseholdTracker,
    JudgeVerifier,
    KeyDoorChain,
    LexicalVerifier,
    RuleVerifier,
    StepBatch,
    arc_advantage,
    inconsistency_report,
)
from steelyard.policy.arc import report as reports
from steelyard.policy.arc.format import LONGEST, SEGMENTS, claims_of
from steelyard.policy.arc.user import Options, _half, rollout_arrays
from steelyard.policy.arc.verifiers import brier_score, content_words, log_score

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FORM = CommitmentFormat()
TURN = FORM.render(progress="room 4", action="go left", prediction="room 3")


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_what_was_rendered_is_read_again(progress, think, action, prediction):
    said = FORM.parse(FORM.render(progress=progress, think=think, action=action, prediction=prediction))
    given_ = {"progress": progress, "action": action, "predict": prediction}
    found = {"progress": said.progress, "action": said.action, "predict": said.prediction}
    assert found == {name: text.strip() or None for name, text in given_.items()}
    assert said.think == (think.strip() if think else None), "a blank thought is no error"
    assert said.errors == tuple(f"'{name}' is empty" for name, text in given_.items() if not text.strip())
    assert set(said.spans) == {name for name, text in found.items() if text} | ({"think"} if think else set())


@given(st.one_of(st.none(), st.integers(), st.binary(), st.floats(), st.lists(st.text())))
def test_what_is_no_text_is_malformed_and_has_no_tokens(turn):
    said = FORM.parse(turn)
    assert (said.progress, said.think, said.action, said.prediction, said.spans) == (None, None, None, None, {})
    assert said.errors == (f"the turn is no text but a {type(turn).__name__}",)
    with pytest.raises(InputError, match="text must be the text of a turn"):
        FORM.segment_mask(turn, [(0, 1)])


def test_a_blank_that_is_not_needed_is_no_error():
    lenient = CommitmentFormat(needed=("action",))
    said = lenient.parse("<progress> </progress><action>a</action><predict></predict>")
    assert (said.progress, said.prediction, said.errors) == ("", "", ())
    assert CommitmentFormat(needed=()).parse("").errors == ()


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: CommitmentFormat({"action": 5}), "tags: 5 must be a word"),
        (lambda: CommitmentFormat([("action", "act")]), "tags must be a mapping"),
        (lambda: CommitmentFormat({"action": "a.*"}), "must be a word"),
        (lambda: CommitmentFormat({"action": "act\n"}), "must be a word"),
        (lambda: CommitmentFormat(needed="action"), "needed must be a list of segments"),
        (lambda: CommitmentFormat(needed=None), "needed must be a list of segments"),
        (lambda: CommitmentFormat(needed=("plan",)), "needed: 'plan' is no segment"),
        (lambda: FORM.render(progress=None, action="a", prediction="b"), "progress must be a text, got NoneType"),
        (lambda: RuleVerifier(required="hold"), "required must be a list of keys"),
    ],
)
def test_forms_and_rules_that_cannot_be(made, sentence):
    with pytest.raises(InputError, match=sentence):
        made()


@pytest.mark.parametrize(
    "offsets",
    [None, 5, "ab", [(0, 1, 2), (3, 4, 5)], [0, 1, 2, 3], [[(0, 1)]], [(0, 1), (2,)], [(0.5, 1.5)], [(0, 2**70)], [()]],
)
def test_offsets_that_are_no_pairs(offsets):
    with pytest.raises(InputError, match="offsets must hold the first and last character"):
        FORM.segment_mask(TURN, offsets)


def test_no_tokens_have_no_segment():
    for offsets in ([], np.zeros((0, 2))):
        assert {name: mask.shape for name, mask in FORM.segment_mask(TURN, offsets).items()} == dict.fromkeys(
            SEGMENTS, (0,)
        )


def test_text_with_letters_of_patterns_is_taken_as_it_is():
    for words in (r"a+b (.*) [x] \1 $^ {2}", "a</b>", "1 < 2 > 1 </", "%s {0}"):
        assert FORM.parse(FORM.render(progress=words, action=words, prediction=words)).action == words
    one = Evidence((r"the (.*) mug",), {"hold": "(.*)"})
    assert RuleVerifier()("hold=(.*)", one) == 1.0
    assert RuleVerifier()("hold=none", one) == 0.0


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<think></think>", "<", " ", "</", "a=", "=;", "\n", "İ"])
def test_the_longest_turn_is_read_in_few_sentences(piece):
    text = (piece * (LONGEST // len(piece)))[:LONGEST]
    assert len(FORM.parse(text).errors) <= 12
    claims_of(text)
    LexicalVerifier()(text, Evidence((text,), previous=text))
    assert math.isnan(JudgeVerifier(lambda _: text)("a mug", Evidence(("a mug",))))


def test_words_of_any_script_have_content():
    assert content_words("Ты видишь кружку_2, café 杯子") == ["ты", "видишь", "кружку", "2", "café", "杯子"]
    seen = Evidence(("На столе красная кружка.",), previous="Вы в комнате.")
    assert LexicalVerifier()("красная кружка", seen) == 1.0
    assert LexicalVerifier()("синяя вилка", seen) == 0.0
    assert JudgeVerifier(lambda _: "1")("красная кружка", seen) == 1.0


def test_a_key_twice_and_capital_letters():
    facts = Evidence((), {"Hold": "None"})
    assert RuleVerifier()("hold=none", facts) == 1.0
    assert RuleVerifier(required=("Hold",))("all is well", facts) == 0.0
    assert RuleVerifier()("hold=none; hold=target", facts) == 0.0, "the last claim counts"
    assert RuleVerifier()("hold=none; HOLD=target", facts) == 0.0


class Encoder:
    """Returns fixed rows and keeps what it was asked."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def encode(self, texts):
        self.asked.append(list(texts))
        return self.rows


def test_an_encoder_is_asked_about_the_last_thing_seen():
    encoder = Encoder([[1.0, 0.0], [1.0, 0.0]])
    assert EmbeddingVerifier(encoder)("a mug", Evidence(("a mug", " ", ""))) == 1.0
    assert encoder.asked == [["a mug", "a mug"]]
    assert math.isnan(EmbeddingVerifier(encoder)("a mug", Evidence(("", " "))))
    for rows, score in (
        ([[1.0, 0.0], [-1.0, 0.0]], 0.0),
        ([[0.0, 0.0], [1.0, 0.0]], 0.0),
        ([[math.nan, 0.0], [1.0, 0.0]], None),
        ([[1e300, 0.0], [1e300, 0.0]], None),
    ):
        with np.errstate(over="ignore"):
            found = EmbeddingVerifier(Encoder(rows))("a mug", Evidence(("a pen",)))
        assert math.isnan(found) if score is None else found == score
    for rows in ([[1.0, 0.0]], [1.0, 0.0], np.zeros((2, 1, 3))):
        with pytest.raises(InputError, match="two rows"):
            EmbeddingVerifier(Encoder(rows))("a mug", Evidence(("a pen",)))


def test_a_judge_is_not_asked_without_an_observation():
    asked = []
    judge = JudgeVerifier(lambda prompt: asked.append(prompt) or "1")
    assert math.isnan(judge("a mug", Evidence(())))
    assert math.isnan(judge("a mug", Evidence(("", "\n"))))
    assert asked == []
    assert judge("a mug", Evidence([f"{place}: a mug" for place in range(30)])) == 1.0
    assert "'10: a mug'" in asked[0]
    assert "'9: a mug'" not in asked[0]


def test_proper_scores_refuse_what_is_no_table():
    for score in (brier_score, log_score):
        for rows, happened in (([[0.5, 0.5], [1.0]], [0, 0]), ("ab", [0]), (None, [0]), ([[0.5, 0.5]], [[0], [1, 2]])):
            with pytest.raises(InputError, match="probabilities"):
                score(rows, happened)


def four(progress):
    return StepBatch(
        [0] * 4, range(4), [0] * 4, [0.0, 1, 0, 1], process={"progress": progress, "prediction": [0.0, 1, 1, 0]}
    )


def test_segments_have_the_names_of_the_form_or_of_signals():
    found = arc_advantage(four([0.0, 1, 0, 1]), weights={"progress": 1.0}, alpha=0.1)
    for name in SEGMENTS:
        assert len(found.for_segment(name)) == 4
    for name in ("progess", "prediction", "", None, ["progress"]):
        with pytest.raises(InputError, match=r"no segment .* there are progress, think, action, predict$"):
            found.for_segment(name)


def test_numbers_too_large_to_square_and_no_steps():
    for values in ([1e300, 0, 0, 0], [0, -1e101, math.nan, 0]):
        with pytest.raises(InputError, match=r"process\['progress'\]: row [01] is larger"):
            arc_advantage(four(values))
    found = arc_advantage(four([1e100, -1e100, math.nan, 0]), route="step", alpha=1e100)
    assert np.isfinite(found.step).all()
    for arguments in ({"alpha": 1e308}, {"weights": {"progress": 1e308}}, {"weights": ["progress"]}, {"weights": None}):
        with pytest.raises(InputError, match=r"alpha|weights"):
            arc_advantage(four([0.0, 1, 0, 1]), **arguments)
    nothing = StepBatch([], [], [], [], process={"progress": [], "prediction": []})
    with np.errstate(all="raise"):
        assert arc_advantage(nothing, whiten=True).progress.shape == (0,)


def test_the_wrapper_says_what_an_environment_or_verifier_lacks():
    env = CommitmentWrapper(KeyDoorChain(), {"progress": LexicalVerifier()})
    with pytest.raises(InputError, match="call reset"):
        env.step(TURN)

    class Taskless(KeyDoorChain):
        def reset(self, **options):
            return None, {"admissible": ["go left"]}

    with pytest.raises(InputError, match="tracker: it is made from info"):
        CommitmentWrapper(Taskless(), {}, tracker=HouseholdTracker).reset()
    mute = CommitmentWrapper(Taskless(), {"progress": LexicalVerifier()})
    assert mute.reset()[0] is None
    mute.env.over = False
    assert mute.step(TURN)[4]["process"]["progress"] == 0.0, "what was not seen bears nothing out"
    for score in (-0.5, 1.5, math.inf, -math.inf):
        for name in ("progress", "prediction"):
            odd = CommitmentWrapper(KeyDoorChain(), {name: lambda claim, evidence, score=score: score})
            odd.reset()
            with pytest.raises(InputError, match=f"that of '{name}' returned"):
                odd.step(TURN)


def test_a_malformed_turn_goes_through_the_wrapper_whatever_it_is():
    env = CommitmentWrapper(KeyDoorChain(), {"progress": LexicalVerifier(), "prediction": LexicalVerifier()})
    env.reset()
    for turn in (None, 5, b"x", "", "<action></action>", "x" * (LONGEST + 1)):
        reward, info = env.step(turn)[1], env.step(turn)[4]
        assert reward == -env.format_penalty
        assert info["process"] == {"progress": 0.0, "prediction": 0.0}
        assert info["valid"] is False


def steps(scores, **more):
    return [{"process": {"progress": score}, **more} for score in scores]


@pytest.mark.parametrize(
    "episodes",
    [
        None, 5, [5], [[5]], (one for one in [steps([0.0])]), [steps([0.0]), []], [[{"process": 5}]], [steps(["x"])],
        [steps([[0.0]])], [steps([math.nan])],
    ],
)  # fmt: skip
def test_episodes_that_are_none(episodes):
    with pytest.raises(InputError, match="episodes"):
        inconsistency_report(episodes)


def test_success_that_no_one_tells_is_not_failure():
    report = inconsistency_report([steps([0.0, 1.0]), steps([1.0])])
    assert math.isnan(report.success)
    assert math.isnan(report.failed_with_inconsistency)
    assert report.inconsistency_rate == pytest.approx(1 / 3)
    assert "success not known" in report.lines()[0]
    assert report.lines()[2].endswith(": none")
    assert report.to_json()["success"] is None


def test_any_step_may_tell_the_success_of_its_episode():
    early = [{**step, **more} for step, more in zip(steps([0.0, 1.0]), ({"success": True}, {}), strict=True)]
    report = inconsistency_report([early, steps([0.0], success=False)])
    assert report.success == 0.5
    assert report.failed_with_inconsistency == 1.0


@given(st.integers(1, 40), st.integers(1, 200))
def test_the_bootstrap_draws_the_same_in_blocks(episodes, held):
    counts = np.random.default_rng(episodes).integers(0, 9, size=(episodes, 8)).astype(float)
    share = np.full(episodes, 1 / episodes)
    whole = np.random.default_rng(1).multinomial(episodes, share, 2000) @ counts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "_HELD", held * 100)
        np.testing.assert_array_equal(reports._resampled(counts, np.random.default_rng(1)), whole)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 99))
def test_half_of_every_tasks_rollouts(tasks, seed):
    task = np.repeat(tasks, 2)
    traj = np.repeat(np.arange(len(tasks))[::-1], 2)
    rows = _half(task, traj, np.random.default_rng(seed))
    for number in set(tasks):
        whole, kept = (np.unique(traj[place]) for place in (task == number, rows[task[rows] == number]))
        assert len(kept) == max(len(whole) // 2, min(len(whole), 2))
    draws, expected = np.random.default_rng(seed), []
    for number in np.unique(task):
        own = draws.permutation(np.unique(traj[task == number]))
        expected += own[: max(len(own) // 2, min(len(own), 2))].tolist()
    np.testing.assert_array_equal(rows, np.flatnonzero(np.isin(traj, expected)))


def test_rollouts_of_the_user_that_cannot_be_used():
    for data in ([5], [[5]], [steps([0.0]), [None]]):
        with pytest.raises(InputError, match="data must be a file's path or a list of episodes"):
            rollout_arrays(data)
    scored = [[{"reward": 1.0, "anchor": {}, "process": {"progress": 1.0, "prediction": 0.0}}] for _ in range(2)]
    assert rollout_arrays(scored)["progress"].tolist() == [1.0, 1.0], "anchors are not read"
    with pytest.raises(ValueError, match="alpha"):
        Options(alpha=math.inf)


def test_weights_and_strengths_must_name_the_signals():
    for arguments, sentence in (
        ({"alpha": {"progress": 0.1}}, "alpha must name the signals"),
        ({"weights": {}}, "at least one signal"),
        ({"weights": {"plan": 1.0}}, "no signal 'plan'; they have prediction, progress"),
    ):
        with pytest.raises(InputError, match=sentence):
            arc_advantage(four([0.0, 1, 0, 1]), **arguments)


def test_a_copied_wrapper_goes_its_own_way():
    env = CommitmentWrapper(KeyDoorChain(), {"progress": LexicalVerifier(), "prediction": LexicalVerifier()})
    env.reset()
    other = copy.deepcopy(env)
    assert env.step(TURN) == other.step(TURN)
    env.step(TURN)
    assert env.state_key() != other.state_key()
