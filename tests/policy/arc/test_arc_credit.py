"""ARC: credit by segment, the form of a turn, verifiers, the wrapper, the rates of inconsistency."""

import math
import warnings

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
    generate_games,
    grpo,
    inconsistency_report,
)
from steelyard.policy.arc.arms import by_parts, estimator, penalised
from steelyard.policy.arc.conformance import steps_of
from steelyard.policy.arc.core import coupled_returns, coupled_steps, mixed
from steelyard.policy.arc.format import claims_of
from steelyard.policy.arc.heads import committed
from steelyard.policy.arc.verifiers import brier_score, content_words, copies, log_score

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FORM = CommitmentFormat()


def batch(seed=0, **process):
    made = steps_of(seed)
    return StepBatch(**{**made, "process": {**made["process"], **process}})


@given(st.integers(0, 500))
def test_without_weight_every_segment_is_grpo_bit_for_bit(seed):
    one = batch(seed, progress=np.full(len(steps_of(seed)["t"]), np.nan))
    for route in ("segment", "step"):
        found = arc_advantage(one, alpha=0.0, route=route)
        for name in ("progress", "think", "action", "predict"):
            assert found.for_segment(name).tobytes() == grpo(one).tobytes()


@given(st.integers(0, 500), st.floats(0.01, 100))
def test_a_signal_is_compared_within_its_task_whatever_its_scale(seed, scale):
    made = steps_of(seed)
    found = arc_advantage(batch(seed), alpha=1.0)
    part = found.progress - found.outcome
    for task in (0, 1):
        own = made["process"]["progress"][made["task"] == task]
        expected = (own - own.mean()) / (own.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(part[made["task"] == task], expected, atol=1e-9)
    other = arc_advantage(batch(seed, progress=7 + scale * made["process"]["progress"]), alpha=1.0)
    np.testing.assert_allclose(other.progress - other.outcome, part, atol=1e-2)
    np.testing.assert_array_equal(other.prediction, found.prediction)


@given(st.integers(0, 500), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_bit(seed, random):
    made = steps_of(seed)
    order = list(range(len(made["t"])))
    random.shuffle(order)
    process = {name: values[order] for name, values in made["process"].items()}
    other = StepBatch(**{name: made[name][order] for name in ("task", "traj", "t", "reward")}, process=process)
    for returns in ("immediate", "to_go"):
        one, two = (arc_advantage(rows, returns=returns) for rows in (batch(seed), other))
        assert two.progress.tobytes() == one.progress[order].tobytes()


def test_what_is_not_scored_gets_the_outcome_alone():
    one = batch()
    masked = np.isnan(one.process["prediction"])
    found = arc_advantage(one)
    np.testing.assert_array_equal(found.prediction[masked], found.outcome[masked])
    assert not np.isnan(found.step).any()
    assert (found.prediction != found.outcome)[~masked].any()


def test_routes_returns_groups_and_whitening():
    one = batch()
    by_step = arc_advantage(one, route="step", alpha=0.3)
    assert by_step.for_segment("action") is by_step.step
    with pytest.raises(InputError, match="no segment 'progess'; there are progress, think"):
        by_step.for_segment("progess")
    weighted = mixed(one.process, {"progress": 0.5, "prediction": 0.5})
    last = np.isnan(one.process["prediction"])
    np.testing.assert_array_equal(weighted[last], one.process["progress"][last])
    two = arc_advantage(one, alpha={"progress": 0.2, "prediction": 0.0})
    np.testing.assert_array_equal(two.prediction, two.outcome)
    white = arc_advantage(one, whiten=True)
    assert white.progress.mean() == pytest.approx(0, abs=1e-9)
    assert white.progress.std() == pytest.approx(1, abs=1e-3)
    flat = StepBatch([0, 0], [0, 1], [0, 0], [1.0, 1.0], process={"progress": [1.0, 1.0], "prediction": [0.0, 0.0]})
    assert (arc_advantage(flat, whiten=True).progress == 0).all()
    anchored = StepBatch(**steps_of(0), anchor=np.zeros(len(steps_of(0)["t"]), int))
    np.testing.assert_array_equal(arc_advantage(anchored, group="anchor").progress, arc_advantage(one).progress)
    to_go = arc_advantage(StepBatch([0] * 3, [0] * 3, range(3), [0.0] * 3, process={"a": [0, 0, 1.0]}),
                          weights={"a": 1.0}, alpha=1.0, returns="to_go", gamma=0.5)  # fmt: skip
    values = np.array([0.25, 0.5, 1.0])
    np.testing.assert_allclose(to_go.signals["a"], (values - values.mean()) / (values.std(ddof=1) + 1e-6))


@pytest.mark.filterwarnings("default::UserWarning")
def test_dangerous_settings_are_said():
    with pytest.warns(UserWarning, match="route='step'"):
        arc_advantage(batch(), route="step")
    with pytest.warns(UserWarning, match="alpha is 1 or more"):
        arc_advantage(batch(), alpha=1.0)
    flat = steps_of(0)
    flat["reward"][:] = 0
    with pytest.warns(UserWarning, match="all returns of each task are equal"):
        arc_advantage(StepBatch(**flat))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arc_advantage(batch())


def test_the_rivals_normalise_once():
    one = StepBatch([0] * 4, range(4), [0] * 4, [10.0, 0, 10, 0])
    signal = np.array([0.0, 1, 1, 0])
    total = np.array([1.0, 0, 1, 0]) + signal
    expected = (total - 1) / (total.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(coupled_returns(one, signal, 1.0, 10.0), expected)
    np.testing.assert_allclose(coupled_steps(one, signal, 1.0, 10.0), expected)
    assert coupled_returns(one, np.full(4, np.nan), 1.0, 10.0).tolist() == pytest.approx(grpo(one).tolist(), rel=1e-5)


def test_the_arms_of_the_bench():
    parts = {
        f"progress.{name}": (batch().process["progress"] > 0.5).astype(float) for name in ("hold", "done", "placed")
    }
    one = batch(**parts)
    outcome = grpo(one)
    for arm in ("outcome", "true_state", "coupled"):
        assert np.asarray(estimator(arm, {"alpha": 0.1})(one)).shape == (len(one),)
    for arm in ("arc", "arc_comp", "coupled_routed", "freeform"):
        found = estimator(arm, {"alpha": 0.1})(one)
        np.testing.assert_array_equal(found["action"], outcome)
    assert not np.array_equal(estimator("arc_step", {"alpha": 0.1})(one)["action"], outcome)
    assert set(by_parts(one, 0.1)) == {"action", "prediction", "hold", "done", "placed"}
    scores = penalised(one).process["progress"]
    np.testing.assert_array_equal(scores, np.where(parts["progress.hold"] == 1, 0.0, -1.0))


def test_a_turn_in_good_form():
    text = "<progress> hold=none </progress><think>well</think><action>go to desk 1</action>\n<predict>a pen</predict>"
    said = FORM.parse(text)
    assert (said.progress, said.think, said.action, said.prediction) == ("hold=none", "well", "go to desk 1", "a pen")
    assert said.errors == ()
    assert FORM.parse(FORM.render(progress="p", action="a", prediction="b")).errors == ()
    assert FORM.parse(f"Well, {text} That is all. ").errors == (), "words around the segments are not read"
    assert FORM.parse("<progress>p</progress><think> </think><action>a</action><predict>b</predict>").errors == ()
    assert all(f"<{tag}>" in FORM.template() for tag in ("progress", "think", "action", "predict"))


@pytest.mark.parametrize(
    ("text", "error", "action"),
    [
        ("", "'progress' is missing", None),
        ("<action>a</action>", "'predict' is missing", "a"),
        ("<progress>p<action>a</action></progress><predict>b</predict>", "'action' begins inside 'progress'", None),
        ("<progress>p</progress><think><action>x</action></think><predict>b</predict>", "begins inside 'think'", None),
        (
            "<progress>p</progress><action>a</action><action>b</action><predict>c</predict>",
            "'action' is there twice",
            None,
        ),
        ("<progress>p</progress><action>a", "'action' is not closed", None),
        ("</action>", "'action' is closed but was not opened", None),
        ("<progress>p</progress><action>a</action><predict>b</predict><think>", "'think' is not closed", "a"),
        ("x" * 200_001, "more than 200000 characters", None),
        ("<Action>a</Action>", "'action' is missing", None),
        ("<progress>p</progress><action> </action><predict>b</predict>", "'action' is empty", None),
        ("<progress>\n</progress><action>a</action><predict>b</predict>", "'progress' is empty", "a"),
        (None, "the turn is no text but a NoneType", None),
        (b"<action>a</action>", "no text but a bytes", None),
    ],
)
def test_what_is_malformed_is_an_error_and_never_raises(text, error, action):
    said = FORM.parse(text)
    assert any(error in sentence for sentence in said.errors), said.errors
    assert said.action == action


@given(st.text(alphabet="<>/actionpredthk ", max_size=300))
def test_any_text_can_be_parsed(text):
    said = FORM.parse(text)
    for span in said.spans.values():
        assert 0 <= span.start < span.inner_start <= span.inner_end < span.end <= len(text)


def test_tags_of_ones_own():
    other = CommitmentFormat({"action": "act"})
    assert other.parse("<progress>p</progress><act>go</act><predict>b</predict>").action == "go"
    for bad in ({"action": "think"}, {"plan": "plan"}, {"action": "A B"}):
        with pytest.raises(InputError, match="tags"):
            CommitmentFormat(bad)


def test_tokens_belong_to_the_segment_in_which_they_begin():
    text = FORM.render(progress="p", action="go", prediction="b") + "\n"
    offsets = [(place, place + 1) for place in range(len(text))] + [(0, 0)]
    masks = FORM.segment_mask(text, offsets)
    spans = FORM.parse(text).spans
    for name in ("progress", "action", "predict"):
        assert np.flatnonzero(masks[name]).tolist() == list(range(spans[name].start, spans[name].end))
    assert not masks["think"].any()
    assert sum(mask.astype(int) for mask in masks.values()).max() == 1


def test_rules_check_claims_against_facts():
    facts = Evidence((), {"hold": "none", "done": "no"})
    rule = RuleVerifier()
    assert rule("hold=none; done=no", facts) == 1
    assert rule("hold=none; done=yes", facts) == 0
    assert rule("HOLD = None\nweather=good", facts) == 1
    assert rule("weather=good", facts) == rule("", facts) == rule("all is well", facts) == 0
    assert math.isnan(RuleVerifier(specificity=False)("weather=good", facts))
    assert RuleVerifier(every=False)("hold=none; done=yes", facts) == 0.5
    assert RuleVerifier(required=("hold", "done"))("hold=none", facts) == 0
    assert rule.parts("hold=none", facts) == {"hold": 1.0}
    assert claims_of("a=1; b = 2\n=3; c=") == {"a": "1", "b": "2"}


def test_shared_words():
    seen = Evidence(("On the desk 1, you see a mug 2, and a pen 1.",), previous="You are at the shelf 3.")
    words = LexicalVerifier()
    assert words("a mug 2", seen) == 1.0
    assert words("a fork 7", seen) == 0.0
    assert 0 < words("a mug 2 and a fork", seen) < 1
    assert words("", seen) == words("you see", seen) == words("Nothing happens next.", seen) == 0.0
    same = Evidence(("On the desk 1, you see a mug 2.",), previous="On the desk 1, you see a mug 2.")
    assert words("On the desk 1, you see a mug 2.", same) == 0.0
    assert copies("mug 2 desk 1", "desk 1: mug 2")
    for part in ("On the desk 1, you see", "mug 2", "a mug 2 desk 1 xx yy zz"):  # whole, in part, with junk
        assert words(part, same) == 0.0
    assert content_words("You will see THE mug.") == ["mug"]


def test_an_encoder_and_a_judge():
    from steelyard.models import HashingEmbedder

    close = EmbeddingVerifier(HashingEmbedder())
    seen = Evidence(("a red mug on the desk",))
    assert close("red mug desk", seen) > close("blue whale ocean", seen)
    assert close("you see", seen) == 0.0
    assert math.isnan(close("a mug", Evidence(())))
    with pytest.raises(InputError, match="embedder"):
        EmbeddingVerifier(object())
    asked = []
    judge = JudgeVerifier(lambda prompt: asked.append(prompt) or " 0.5\n")
    assert judge("a mug", seen) == 0.5
    assert "'a mug'" in asked[0]
    assert judge("", seen) == 0.0
    for answer in ("2", "-1", "nan", "yes", "0.5 because", None, "1e-3", "0." + "1" * 99, "0.٥"):
        assert math.isnan(JudgeVerifier(lambda _, answer=answer: answer)("a mug", seen))


def test_a_prediction_is_not_judged_without_a_next_observation():
    class Mute(KeyDoorChain):
        def step(self, command):
            return ("", *super().step(command)[1:])

    env = CommitmentWrapper(Mute(), {"progress": LexicalVerifier(), "prediction": LexicalVerifier()})
    env.reset()
    told = env.step(turn("go left", "room 4", "room 3"))[4]
    assert told["process"]["progress"] == 1.0
    assert math.isnan(told["process"]["prediction"])
    assert env.step(FORM.render(progress="room", action="", prediction="x"))[4]["valid"] is False


def test_a_signal_without_weight_does_not_reach_the_step():
    one, two = batch(), batch(prediction=np.linspace(0, 1, len(batch())))
    weights = {"progress": 0.2, "prediction": 0.0}
    found = [arc_advantage(rows, alpha=weights, route="step").step for rows in (one, two)]
    np.testing.assert_array_equal(*found)
    same = arc_advantage(one, alpha={"progress": 0.2, "prediction": 0.2}, route="step").step
    np.testing.assert_array_equal(same, arc_advantage(one, alpha=0.2, route="step").step)


def test_proper_scores():
    assert brier_score([[0.5, 0.5], [1.0, 0.0]], [0, 0]) == pytest.approx(0.25)
    assert log_score([[0.5, 0.5]], [1]) == pytest.approx(math.log(0.5))
    assert log_score([[1.0, 0.0]], [1]) == -math.inf
    for rows, happened in (([[0.5]], [0]), ([[0.5, 0.5]], [2]), ([[0.5, 0.5]], [0.5]), ([], [])):
        with pytest.raises(InputError):
            brier_score(rows, happened)


def turn(command, progress="hold=none; done=no; placed=0", prediction="next=misc"):
    return FORM.render(progress=progress, action=command, prediction=prediction)


def scores(commands, progress="hold=target; done=no; placed=0", game=None):
    env = committed((game or generate_games(1, 5)[0]).make_env(20))
    env.reset()
    return [env.step(turn(command, progress))[4]["process"] for command in commands]


def test_a_statement_is_about_the_past_and_a_prediction_about_the_next_observation():
    game = generate_games(1, 5, ("pick_and_place_simple",))[0]
    way = list(game.walkthrough)
    take = next(place for place, command in enumerate(way) if command.startswith("take"))
    whole = scores(way, game=game)
    assert [one["progress"] for one in whole[: take + 1]] == [0.0] * (take + 1)
    assert whole[take + 1]["progress"] == 1.0
    for cut in range(1, len(way)):  # another future changes nothing up to the step before it
        other = scores([*way[:cut], *["inventory"] * 3], game=game)
        assert other[:cut] == whole[:cut]
        assert other[cut]["progress"] == whole[cut]["progress"]
    env = committed(game.make_env(20))
    env.reset()
    assert env.step(turn("inventory", prediction="next=misc"))[4]["process"]["prediction"] == 1.0
    assert env.step(turn("inventory", prediction="next=picked"))[4]["process"]["prediction"] == 0.0


def test_vacuous_and_malformed_turns_earn_nothing():
    env = CommitmentWrapper(
        KeyDoorChain(), {"progress": LexicalVerifier(), "prediction": LexicalVerifier()}, format_penalty=0.25
    )
    env.reset()
    for said in ("", "you see", "nothing new happens"):
        told = env.step(turn("go right", said, said))[4]
        assert told["process"] == {"progress": 0.0, "prediction": 0.0}
    observation, reward, _, _, info = env.step("go right")
    assert reward == -0.25
    assert info["valid"] is False
    assert info["process"] == {"progress": 0.0, "prediction": 0.0}
    assert "'action' is missing" in info["commitment"].errors
    assert env.state_key() == env.env.state
    assert env.length == 10
    copied = env.step(turn("go left", "room 5", observation))[4]["process"]
    assert copied["prediction"] == 0.0
    alone = CommitmentWrapper(KeyDoorChain(), {})
    alone.reset()
    assert all(math.isnan(value) for value in alone.step(turn("go left"))[4]["process"].values())
    for bad in ({"verifiers": {"plan": LexicalVerifier()}}, {"verifiers": {}, "format_penalty": -1}):
        with pytest.raises(InputError):
            CommitmentWrapper(KeyDoorChain(), **bad)


def test_silence_is_not_wrong_where_it_is_allowed():
    env = committed(generate_games(1, 5)[0].make_env(), silence=True)
    env.reset()
    assert env.step(turn("look", "hold=none"))[4]["process"]["progress"] == 1.0
    assert env.step(turn("look", ""))[4]["process"]["progress"] == 0.0
    assert HouseholdTracker("put a pen in desk.").facts()["hold"] == "none"


def episode(bad, won):
    return [{"process": {"progress": math.nan if one is None else 1.0 - one}, "success": won} for one in bad]


def test_the_rates_by_hand():
    report = inconsistency_report([episode([0, 1, 1, 0], False), episode([0, 0], True), episode([0, None, 0], False)])
    assert report.inconsistency_rate == pytest.approx(2 / 8)
    assert report.failed_with_inconsistency == pytest.approx(1 / 2)
    assert report.persistence_markov == pytest.approx(1 / 2)
    assert report.persistence_after_onset == pytest.approx(1 / 2)
    assert (report.success, report.episodes, report.turns) == (pytest.approx(1 / 3), 3, 8)
    low, high = report.intervals["inconsistency_rate"]
    assert low <= 2 / 8 <= high
    assert report.to_json()["episodes"] == 3
    assert len(report.lines()) == 5
    gap = inconsistency_report([episode([1, None, 1, 0], False)])  # what follows an unscored turn is no pair
    assert gap.persistence_markov == 0.0
    fine = inconsistency_report([episode([0, 0], True)])
    assert math.isnan(fine.persistence_markov)
    assert fine.to_json()["persistence_markov"] is None
    for bad in ([], [[{"success": True}]], [[]]):
        with pytest.raises(InputError, match="episodes"):
            inconsistency_report(bad)


def test_the_interval_covers_a_known_rate():
    draws = np.random.default_rng(0)
    made = [episode(draws.random(12) < 0.3, False) for _ in range(200)]
    low, high = inconsistency_report(made, generator=np.random.default_rng(1)).intervals["inconsistency_rate"]
    assert low < 0.3 < high
    assert high - low < 0.06
