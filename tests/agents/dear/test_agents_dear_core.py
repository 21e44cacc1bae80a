"""Evidence, Dempster's rule, conformity, reward and cost against hand computations and exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.dear import core
from steelyard.errors import InputError

FRAME = frozenset("abc")
answers_of = st.integers(1, 6).flatmap(
    lambda K: st.tuples(st.just(K), st.lists(st.integers(0, K - 1), min_size=1, max_size=9))
)


def exact_dissonance(b):
    """The formula in exact fractions, as written in the docstring."""
    total = Fraction(0)
    for k, mine in enumerate(b):
        others = [x for j, x in enumerate(b) if j != k]
        if sum(others) == 0:
            continue
        balance = [0 if x + mine == 0 else 1 - abs(x - mine) / (x + mine) for x in others]
        total += mine * sum(x * y for x, y in zip(others, balance, strict=True)) / sum(others)
    return total


def test_hand_computed_evidence():
    found = core.group_evidence([0, 0, 0, 1], history=[[0, 1, 1, 1]], n_options=2)
    assert found.shares.tolist() == [0.75, 0.25]
    assert found.consensus == 0.75
    assert found.margin == 0.5
    assert found.clusters == 2
    assert found.flip_rate == 0.5
    assert found.drift.tolist() == [0.5, -0.5]
    assert found.divergence == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)), abs=1e-15)
    # r = (1 + 3, 3 + 1) = (4, 4), S = 10
    assert found.belief.tolist() == [0.4, 0.4]
    assert found.vacuity == 0.2
    assert found.dissonance == pytest.approx(0.8, abs=1e-15)
    assert found.unparsable == 0
    faded = core.group_evidence([0, 0, 0, 1], history=[[0, 1, 1, 1]], n_options=2, gamma=0.0)
    assert faded.belief == pytest.approx([3 / 6, 1 / 6])
    assert faded.dissonance == pytest.approx(1 / 3)  # (1/2 + 1/6) * Bal, Bal = 1 - (1/3) / (2/3)


def test_gamma_weighs_by_age():
    found = core.group_evidence(["x"], history=[["y"], ["x"]], gamma=0.5)
    assert found.labels == ("x", "y")
    assert found.belief == pytest.approx([1.5 / 3.75, 0.25 / 3.75])


@given(answers_of, st.randoms(use_true_random=False))
def test_evidence_identities_and_invariance(case, random):
    K, answers = case
    history = [[random.randrange(K) for _ in answers] for _ in range(random.randrange(3))]
    found = core.group_evidence(answers, history=history, n_options=K)
    assert found.belief.sum() + found.vacuity == pytest.approx(1, abs=1e-12)
    assert -1e-15 <= found.dissonance <= 1 - found.vacuity + 1e-12
    assert 0 <= found.divergence <= 1
    assert found.drift.sum() == pytest.approx(0, abs=1e-12)
    exact = [Fraction(int(x)) for x in np.sum([np.bincount(row, minlength=K) for row in [*history, answers]], axis=0)]
    exact = [x / (sum(exact) + K) for x in exact]
    assert found.dissonance == pytest.approx(float(exact_dissonance(exact)), abs=1e-12)
    names, order = random.sample(range(K), K), random.sample(range(len(answers)), len(answers))
    rows = [[names[row[i]] for i in order] for row in [*history, answers]]
    other = core.group_evidence(rows[-1], history=rows[:-1], n_options=K)
    for field in ("consensus", "divergence", "margin", "clusters", "flip_rate", "vacuity", "dissonance"):
        assert getattr(other, field) == pytest.approx(getattr(found, field), abs=1e-12)
    for field in ("shares", "belief", "drift"):
        assert getattr(other, field)[names] == pytest.approx(getattr(found, field), abs=1e-12)


def test_one_option_has_no_divergence():
    assert core.group_evidence([0, 0], n_options=1).divergence == 0
    assert core.group_evidence(["x", "x"]).divergence == 0
    assert core.group_evidence(["x"]).margin == 1


def test_open_answers_are_clustered():
    found = core.group_evidence([" Paris ", "paris", "42", 42.0000001, "41.5", None, "∅", ""])
    assert found.labels == (41.5, 42.0, "paris")
    assert found.shares.tolist() == [0.2, 0.4, 0.4]
    assert found.unparsable == 3
    assert core.group_evidence(["nan", "inf", object]).clusters == 3  # no finite number: text
    assert core.group_evidence([1e9, 1e9 + 500, 1e9 + 5000]).clusters == 2  # numbers are compared relatively


def test_nobody_answers():
    found = core.group_evidence([None, None])
    assert (found.consensus, found.divergence, found.vacuity, found.clusters, found.unparsable) == (0, 0, 1, 0, 2)


def test_semantic_agreement_and_alarm():
    same, new = [1.0, 0.0], [0.0, 1.0]
    before = ["a", "a", "b", "b"]
    follows = core.group_evidence(["a", "a", "a", "b"], history=[before], embeddings=[same, same, same, new])
    assert (follows.agreement_within, follows.agreement_across) == (1.0, 0.0)
    assert (follows.new_argument_rate, follows.conformity_alarm) == (0.0, True)
    argues = core.group_evidence(["a", "a", "a", "b"], history=[before], embeddings=[same, same, new, new])
    assert (argues.new_argument_rate, argues.conformity_alarm) == (1.0, False)
    quiet = core.group_evidence(before, history=[before], embeddings=[same] * 4)
    assert (quiet.new_argument_rate, quiet.conformity_alarm) == (None, None)
    still = core.group_evidence(["b", "a", "b", "a"], history=[before], embeddings=[same] * 4)
    assert (still.new_argument_rate, still.conformity_alarm) == (0.0, False)  # two changed places: C does not rise
    lone = core.group_evidence(["a", "a", "a", "b", "b"], history=[["a", "a", "a", "a", "b"]], embeddings=[same] * 5)
    assert lone.new_argument_rate is None  # who joins a minority adopts no leading answer
    half = core.group_evidence(["a", "a", "b"], history=[["a", "b", "b"]], embeddings=[same, [0.8, 0.6], same])
    assert half.new_argument_rate == 1.0  # cosine .8 with the one joined; were it one of them itself, .95
    alone = core.group_evidence(["a"], embeddings=[same])
    assert (alone.agreement_within, alone.agreement_across) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"answers": []}, "answers"),
        ({"answers": [0, 1], "history": [[0]]}, "history"),
        ({"answers": [0], "gamma": 1.5}, "gamma"),
        ({"answers": [3], "n_options": 3}, "n_options"),
        ({"answers": [0.5], "n_options": 3}, "n_options"),
        ({"answers": ["a", "b", "c"], "n_options": 2}, "n_options"),
        ({"answers": [0], "n_options": 0}, "n_options"),
        ({"answers": [0, 1], "embeddings": [[1.0]]}, "embeddings"),
        ({"answers": [0], "embeddings": [[math.nan]]}, "embeddings"),
    ],
)
def test_bad_evidence(arguments, names):
    with pytest.raises(InputError, match=names):
        core.group_evidence(**arguments)


def test_text_answers_with_known_number_of_options():
    found = core.group_evidence(["a", "b", "a"], n_options=4)
    assert found.labels == ("a", "b")
    assert found.belief == pytest.approx([2 / 7, 1 / 7, 0, 0])


def test_opinion_and_dissonance_edges():
    opinion = core.dirichlet_opinion([[3, 1], [0, 0]], 2)
    assert opinion.belief == pytest.approx(np.array([[0.5, 1 / 6], [0, 0]]))
    assert opinion.vacuity == pytest.approx([1 / 3, 1])
    assert core.dissonance([0.0, 0.0, 0.0]) == 0
    assert core.dissonance([0.7]) == 0
    assert core.dissonance([0.5, 0.0]) == 0
    for bad in ([-1, 2], [math.inf, 1], 3.0, []):
        with pytest.raises(InputError, match="r must"):
            core.dirichlet_opinion(bad)
    with pytest.raises(InputError, match="K = 3"):
        core.dirichlet_opinion([1, 1], 3)


def test_hand_computed_dempster():
    m1, m2 = {frozenset("a"): 0.6, FRAME: 0.4}, {frozenset("b"): 0.7, FRAME: 0.3}
    masses, conflict = core.dempster_combine(m1, m2)
    assert conflict == pytest.approx(0.42)
    expected = {frozenset("a"): 0.18 / 0.58, frozenset("b"): 0.28 / 0.58, FRAME: 0.12 / 0.58}
    assert masses == pytest.approx(expected)
    votes = core.dempster_votes(["a", "b"], [0.6, 0.7])
    assert votes.masses == pytest.approx({"a": 0.18 / 0.58, "b": 0.28 / 0.58})
    assert votes.unknown == pytest.approx(0.12 / 0.58)
    overlap, none = core.dempster_combine({frozenset("ab"): 1.0}, {frozenset("bc"): 1.0})
    assert (overlap, none) == ({frozenset("b"): 1.0}, 0.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 0.99)), min_size=1, max_size=7))
def test_closed_form_equals_combination_one_by_one(votes):
    answers, weights = zip(*votes, strict=True)
    closed = core.dempster_votes(answers, weights)
    masses, agreement = {FRAME: 1.0}, 1.0
    for answer, weight in votes:
        step = core.dempster_combine(masses, {frozenset(answer): weight, FRAME: 1 - weight})
        masses, agreement = step.masses, agreement * (1 - step.conflict)
    assert closed.unknown == pytest.approx(masses[FRAME], abs=1e-12)
    for answer, mass in closed.masses.items():
        assert mass == pytest.approx(masses[frozenset(answer)], abs=1e-12)
    assert closed.conflict == pytest.approx(1 - agreement, abs=1e-12)
    assert sum(closed.masses.values()) + closed.unknown == pytest.approx(1, abs=1e-12)


@given(st.data())
def test_dempster_is_commutative_and_sums_to_one(data):
    sets = [frozenset("a"), frozenset("ab"), frozenset("bc"), FRAME]
    drawn = data.draw(st.lists(st.floats(0.01, 1), min_size=8, max_size=8))
    m1, m2 = ({s: x / math.fsum(part) for s, x in zip(sets, part, strict=True)} for part in (drawn[:4], drawn[4:]))
    left, right = core.dempster_combine(m1, m2), core.dempster_combine(m2, m1)
    assert left.masses == pytest.approx(right.masses, abs=1e-12)
    assert sum(left.masses.values()) == pytest.approx(1, abs=1e-12)
    assert left.conflict == pytest.approx(right.conflict, abs=1e-12)


def test_total_conflict():
    certain_a, certain_b = {frozenset("a"): 1.0}, {frozenset("b"): 1.0}
    with pytest.raises(core.TotalConflictError):
        core.dempster_combine(certain_a, certain_b)
    with pytest.raises(core.TotalConflictError):
        core.dempster_votes(["a", "b", "a"], [1.0, 1.0, 0.2])
    averaged = core.dempster_combine(certain_a, certain_b, on_conflict="average")
    assert averaged.masses == {frozenset("a"): 0.5, frozenset("b"): 0.5}
    assert averaged.conflict == 1
    votes = core.dempster_votes(["a", "b"], [1.0, 1.0], on_conflict="average")
    assert (votes.masses, votes.unknown, votes.conflict) == ({"a": 0.5, "b": 0.5}, 0.0, 1.0)
    sure = core.dempster_votes(["a", "a", "b"], [1.0, 1.0, 0.5])  # two certain votes for one answer do not conflict
    assert sure.masses == {"a": 1.0, "b": 0.0}
    partly = core.dempster_votes(["a", "b", "c"], [1.0, 1.0, 0.4], on_conflict="average")
    assert partly.unknown == pytest.approx(0.2)  # the third's doubt, by three votes


def test_divergence_is_over_all_options():
    assert core.divergence([0.5, 0.5, 0.0, 0.0]).item() == pytest.approx(0.5)  # ln 2 / ln 4


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: core.dempster_combine({"a": 1.0}, {FRAME: 1.0}), "m1"),
        (lambda: core.dempster_combine({FRAME: 1.0}, {frozenset(): 1.0}), "m2"),
        (lambda: core.dempster_combine({FRAME: 1.5}, {FRAME: 1.0}), "m1"),
        (lambda: core.dempster_combine({FRAME: 0.5}, {FRAME: 1.0}), "sums to"),
        (lambda: core.dempster_combine({FRAME: math.nan}, {FRAME: 1.0}), "m1"),
        (lambda: core.dempster_combine({FRAME: 1.0}, {FRAME: 1.0}, on_conflict="x"), "on_conflict"),
        (lambda: core.dempster_votes(["a"], [0.5, 0.5]), "w has shape"),
        (lambda: core.dempster_votes([], []), "w has shape"),
        (lambda: core.dempster_votes(["a"], [1.5]), "w must"),
        (lambda: core.dempster_votes(["a"], [math.nan]), "w must"),
        (lambda: core.dempster_votes(["a"], [0.5], on_conflict="x"), "on_conflict"),
        (lambda: core.reconcile_weight([1.2]), "c must"),
        (lambda: core.reconcile_weight(math.nan), "c must"),
        (lambda: core.conformity([[0]], [[0, 1]], [0]), "do not fit"),
        (lambda: core.conformity([], [], 0), "do not fit"),
        (lambda: core.shaping_sum(1.0), "correct must"),
        (lambda: core.shaping_sum([0, 1], discount=2), "discount"),
        (lambda: core.debate_cost(np.zeros((2, 3)), np.zeros(2)), "do not fit"),
        (lambda: core.debate_cost(np.full((2, 2), 2), np.zeros(2)), "only 0 and 1"),
    ],
)
def test_bad_input(call, names):
    with pytest.raises(InputError, match=names):
        call()


def test_reconcile_table():
    stated = [1.0, 0.999, 0.9, 0.899, 0.8, 0.799, 0.601, 0.6, 0.0]
    assert core.reconcile_weight(stated).tolist() == [1.0, 0.8, 0.8, 0.5, 0.5, 0.3, 0.3, 0.1, 0.1]


@given(st.integers(0, 2**32 - 1))
def test_conformity_counts(seed):
    rng = np.random.default_rng(seed)
    first, last, truth = rng.integers(3, size=(6, 4)), rng.integers(3, size=(6, 4)), rng.integers(3, size=6)
    found = core.conformity(first, last, truth)
    was, now = first == truth[:, None], last == truth[:, None]
    assert now.mean() == pytest.approx(was.mean() - found.harmful + found.beneficial, abs=1e-12)
    if was.any():
        assert found.harmful_rate == pytest.approx(1 - now[was].mean())
    else:
        assert math.isnan(found.harmful_rate)
    if not was.all():
        assert found.beneficial_rate == pytest.approx(now[~was].mean())


def test_conformity_by_hand():
    found = core.conformity([[0, 0, 1, 2]], [[0, 1, 0, 2]], [0])
    assert found == (0.25, 0.25, 0.5, 0.5)
    assert math.isnan(core.conformity([[0]], [[0]], [0]).beneficial_rate)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6))
def test_shaping_telescopes_without_discount(correct):
    total = core.shaping_sum(correct)
    assert total == pytest.approx(0.5 * (np.array(correct[-1], float) - np.array(correct[0], float)))


def test_discount_penalises_a_detour():
    assert core.shaping_sum([1, 0, 1], discount=0.99) == pytest.approx(-0.5 + 0.99 * 0.5)
    assert core.shaping_sum([0, 1, 0], discount=0.0) == 0.5


def test_cost_by_hand():
    everyone = ~np.eye(5, dtype=bool)
    assert core.debate_cost([everyone] * 3, [["revise"] * 5] * 3) == (50.0, 20)  # 5 + 3 * 5 * (1 + 4 / 2)
    assert core.debate_cost(everyone, ["keep"] * 4 + ["critique"]) == (8.0, 6)
    assert core.debate_cost(np.ones((2, 2)), [1, 0]) == (3.5, 3)  # the diagonal does not count
    only = np.array([[0, 1, 1], [0, 0, 0], [0, 0, 0]])
    assert core.debate_cost(only, [1, 0, 0]) == (5.0, 4)  # the reader pays, whether or not those read speak
    assert core.debate_cost(only, [0, 1, 1]) == (5.0, 5)  # who keeps reads nothing


@given(st.integers(0, 2**32 - 1))
def test_calls_are_bounded(seed):
    rng = np.random.default_rng(seed)
    rounds, agents = rng.integers(1, 5), rng.integers(1, 6)
    found = core.debate_cost(rng.random((rounds, agents, agents)) < 0.5, rng.integers(4, size=(rounds, agents)))
    assert agents <= found.calls <= agents * (1 + rounds)
    assert found.calls <= found.units <= found.calls + 0.5 * rounds * agents * (agents - 1)
