"""The bench on a tiny random model: one cell carries all arms, on the same answers; labels never reach a score."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard.contracts import SEPARATOR, CellInput
from steelyard.errors import InputError
from steelyard.guard.discrepancy import answering, arms, bench, scoring, tasks
from steelyard.guard.discrepancy.bench import BENCH
from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.labels import Labels
from steelyard.guard.discrepancy.measure import auroc
from steelyard.models.embedders import HashingEmbedder
from steelyard.models.tiny import tiny_random_lm

PARAMS = {**bench.PARAMS, "answers": 6, "least": 2, "samples": 0, "planted": 4, "max_new_tokens": 6}
EVERY_SINGLE = {arm.name for arm in (*arms.VARIANTS, *arms.SINGLE, *arms.CONTROLS)}


@pytest.fixture(scope="module")
def data():
    return {
        **tasks.arrays_of((f"Fact {n}: it is {n * 7}.", f"What is {n}?", (str(n * 7),)) for n in range(70)),
        "model": np.array("tiny"),
    }


@pytest.fixture(scope="module")
def lm():
    return tiny_random_lm(seed=3)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch, lm):
    monkeypatch.setattr(answering, "open_model", lambda cell: lm)
    monkeypatch.setattr(bench, "load_default_embedder", HashingEmbedder)
    monkeypatch.setattr(answering, "label_answers", lambda answers, golds: _every_other(len(answers)))


def _every_other(count):
    even = np.arange(count) % 2 == 0
    return Labels(even, np.arange(count) % 3 == 0)


def cell(task="questions", arm="discrepancy", data=None, seed=0, options=None, root="evaluation", **params):
    return CellInput(task, arm, BENCH.arm(arm).config, {**PARAMS, **params}, options or {}, seed, data, root)


@pytest.fixture(scope="module")
def found(data, lm):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "open_model", lambda cell: lm)
        patch.setattr(bench, "load_default_embedder", HashingEmbedder)
        patch.setattr(answering, "label_answers", lambda answers, golds: _every_other(len(answers)))
        return BENCH.run(cell(data=data, samples=4))


def test_one_cell_carries_every_arm(found):
    derived = BENCH.derive({"discrepancy": found.metrics})
    hashed = {"black_box"}  # hashed n-grams have no states of single tokens
    assert set(derived) == {arm.name for arm in arms.ARMS if arm.derived} - hashed
    for name, values in derived.items():
        if name != "cheapest_multi":
            assert 0 <= values["auroc"] <= 1
            assert {"auroc_rouge", "auroc_stratified"} <= set(values)
    assert set(derived["nll"]) <= {metric.name for metric in BENCH.metrics}
    own = {name for name in found.metrics if SEPARATOR not in name}
    assert own <= {metric.name for metric in BENCH.metrics}
    assert {"auroc", "cpu", "tokens", "wrong", "answers", "unanswered", "answer_cpu"} <= own
    assert found.notes == {"samples": 4}
    assert found.steps == found.metrics["answers"] * 5


def test_costs_are_those_of_each_arms_own_steps(found):
    derived = BENCH.derive({"discrepancy": found.metrics})
    assert derived["nll"]["cpu"] == derived["max_nll"]["tokens"] == derived["length"]["cpu"] == 0
    header = len(EmbeddingDiscrepancy(tiny_random_lm()).prefix_ids)
    assert found.metrics["tokens"] == header + found.metrics["answer_tokens"]
    assert derived["two_passes"]["tokens"] > found.metrics["tokens"] + 100
    for name in arms.MULTI_NAMES:
        assert derived[name]["tokens_k10"] == pytest.approx(derived[name]["tokens"] * 10 / 4)
        assert 0 < derived[name]["cpu"] < derived[name]["cpu_k10"] < derived[name]["cpu"] * 10 / 4  # the prompt once
    assert derived["cheapest_multi"]["cpu"] == min(derived[name]["cpu"] for name in arms.MULTI_NAMES)
    assert derived["best_multi"]["auroc"] == max(derived[name]["auroc"] for name in arms.MULTI_NAMES)


def test_traces_hold_the_scores_behind_the_areas(found):
    _, wrong = found.traces["wrong"]
    for name in ("discrepancy", "max_nll", "length", "eigenscore"):
        numbers, scores = found.traces[name]
        assert numbers == found.traces["wrong"][0]
        area = found.metrics["auroc" if name == "discrepancy" else f"{name}:auroc"]
        assert auroc(scores, np.array(wrong) == 1) == area
    assert found.traces["by_layer"][0] == [1.0, 2.0]


def test_equal_seeds_give_equal_scores_and_other_seeds_other_questions(data):
    runs = [BENCH.run(cell(data=data, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0].traces == runs[1].traces
    assert not set(runs[0].traces["wrong"][0]) & set(runs[2].traces["wrong"][0])
    assert {name for name in runs[0].metrics if "semantic" in name or "best_multi" in name} == set()


def test_states_kept_from_generation_give_the_scores_of_both_passes(data, lm):
    detector = EmbeddingDiscrepancy(lm)
    answers = answering.live_answers(cell(data=data), lm, detector.layers)
    pairs, _, _ = scoring.all_passes(detector, answers)
    d, both = scoring._discrepancy(detector, answers, pairs, 1.0)
    again = detector.score(answers.questions, answers.tokens, answers.contexts)
    read_anew = [lm.response_ids(text) for text in answers.responses]
    assert read_anew != answers.tokens  # a text can have other tokens than those that were drawn
    assert d.scores == pytest.approx(again, abs=1e-5)
    assert both.scores == pytest.approx(again, abs=1e-5)
    assert both.cpu > d.cpu >= 0


def test_labels_reach_no_score(data, lm, monkeypatch):
    """With every label turned round, all scores but those of the marked oracles stay the same."""

    def columns():
        answers = answering.live_answers(cell(data=data), lm, detector.layers)
        return scoring.single_columns(detector, HashingEmbedder(), answers).columns

    detector = EmbeddingDiscrepancy(lm)
    before = columns()
    monkeypatch.setattr(answering, "label_answers", lambda a, g: Labels(*(~rule for rule in _every_other(len(a)))))
    after = columns()
    assert set(before) == EVERY_SINGLE - {"black_box"} | {"discrepancy", "probe"}
    for name in set(before) - {"probe"}:
        assert (before[name].scores == after[name].scores).all(), name
    assert (before["probe"].scores != after["probe"].scores).any()


def test_a_subset_without_both_classes_grows_until_they_are_there(data, lm, monkeypatch):
    asked = []

    def rare(answers, golds):
        asked.append(len(answers))
        right = np.arange(len(answers)) == (0 if len(asked) > 1 else -1)
        return Labels(right, right)

    monkeypatch.setattr(answering, "label_answers", rare)
    answers = answering.live_answers(cell(data=data, least=1), lm, (1,))
    assert asked == [6, 3]
    assert (~answers.wrong).sum() == 1
    assert len(answers.responses) == len(answers.states) == len(answers.tokens) == 6  # as many as were wanted
    assert answers.rates == pytest.approx((8 / 9, 8 / 9))
    assert answers.asked == 9  # what answering took is shared among these, not among the 6 that are kept
    assert len(set(answers.groups.tolist())) == 6
    asked.clear()
    with pytest.raises(InputError, match="seed 0: 8 of 10 answers wrong; at least 4 of each class"):
        answering.live_answers(cell(data=data, least=4), lm, (1,))


def test_empty_answers_are_left_out_and_counted(data, lm, monkeypatch):
    real = lm.generations

    def some_empty(prompts, **options):
        done = real(prompts, **options)
        return [one if row else type(one)("  ", one.tokens, one.states) for row, one in enumerate(done)]

    monkeypatch.setattr(lm, "generations", some_empty)
    answers = answering.live_answers(cell(data=data), lm, (1,))
    assert (answers.unanswered, len(answers.responses)) == (1, 5)


def test_arms_that_read_the_prompt_once_more_can_be_left_out(data):
    found = BENCH.run(cell(data=data, samples=2, p_true=False, ln_entropy=False))
    derived = BENCH.derive({"discrepancy": found.metrics})
    assert not {"p_true", "ln_entropy"} & set(derived)
    assert {"lexical", "eigenscore", "cheapest_multi"} <= set(derived)


def test_planted_answers_and_the_lines_to_compare_with(data):
    planted = BENCH.run(cell("planted", "planted", data))
    assert planted.metrics["answers"] == planted.steps == 8
    assert 0 <= planted.metrics["auroc"] <= 1
    for arm, value in (("chance", 0.5), ("labels", 1.0)):
        assert set(BENCH.run(cell("planted", arm, data)).metrics.values()) == {value}
        given = BENCH.run(cell("halueval_pairs", arm, data)).metrics
        assert given == {"auroc_given": value, "auroc_given_stratified": value}


def made_up(count=40, **changes):
    rows = [(None, f"What is {n}?", f"It is {n + wrong}.", bool(wrong), n) for n in range(count) for wrong in (0, 1)]
    return {**tasks._pairs(rows), **changes}


def test_made_up_pairs_have_figures_of_their_own():
    found = BENCH.run(cell("halueval_pairs", data=made_up(), answers=3))
    derived = BENCH.derive({"discrepancy": found.metrics})
    assert found.metrics["answers"] == 6
    assert "auroc" not in found.metrics
    assert {"auroc_given", "auroc_given_stratified"} <= set(derived["length"])
    assert not set(arms.MULTI_NAMES) & set(derived)
    assert "sgi" not in derived  # compares with a context, of which there is none
    assert found.metrics["two_passes:cpu"] == found.metrics["cpu"]  # nothing was kept from generation


def test_given_answers_of_one_class_are_refused():
    with pytest.raises(InputError, match="seed 0: all its answers are of one class"):
        BENCH.run(cell("own_answers", data=made_up(wrong=np.ones(80, dtype=bool))))


def test_the_users_settings_reach_detector_and_samples(data):
    options = {"layer": "1", "pool": "last", "dist": "l2", "samples": 2, "max_new_tokens": 3, "temperature": 0.7}
    asked = cell("own", data=data, options=options, own_answers=4, own_least=1)
    assert bench.settings(asked) == {"layer": "1", "pool": "last", "dist": "l2", "batch_size": 16}
    found = BENCH.run(asked)
    assert found.notes == {"samples": 2}
    assert found.metrics["answers"] == 4
    assert found.metrics["answer_tokens"] <= 3
    with pytest.raises(InputError, match="samples must be 0, or at least 2"):
        bench.samples_of(cell("own", data=data, options={"samples": 1}), given=False)


def test_arms_tasks_and_profiles_fit_together():
    names = [arm.name for arm in BENCH.arms]
    assert len(set(names)) == len(names)
    known = {task.name for task in BENCH.tasks}
    for profile in BENCH.profiles.values():
        for block in profile.blocks:
            assert set(block.tasks) <= known
            assert all(not BENCH.arm(name).derived for name in block.arms)
        longest = max((tasks.SEEDS.get(task, 10) for block in profile.blocks for task in block.tasks), default=10)
        assert profile.recipe or profile.seeds <= longest
    quick = {task for block in BENCH.profiles["quick"].blocks for task in block.tasks}
    assert not any(BENCH.task(name).dataset for name in quick)  # no download
    assert [BENCH.profiles[name].seeds for name in ("quick", "full")] == [6, 10]
    assert BENCH.profiles["full"].params["answers"] == 30
    assert "7 billion" in BENCH.profiles["gpu"].recipe


def test_a_score_that_is_the_same_for_all_lengths_stays_as_it_is(lm, data):
    """Nothing can be taken out of answers of one length."""
    detector = EmbeddingDiscrepancy(lm)
    answers = answering.live_answers(cell(data=data), lm, detector.layers)
    answers = answers._replace(tokens=[ids[:1] for ids in answers.tokens])
    pairs, hide, _ = scoring.all_passes(detector, answers)
    by_layer = np.stack([scoring.scores_at(pairs, (place,), "mean", "cosine") for place in range(2)])
    found = scoring.variants(pairs, detector, answers, by_layer)
    assert (found["d_length_adjusted"] == scoring.scores_at(pairs, (detector.layers[0] - 1,), "mean", "cosine")).all()
    assert hide.shape == (len(pairs),)


def test_variants_change_one_of_the_users_choices_only(lm, data):
    detector = EmbeddingDiscrepancy(lm, layer=1, pool="token", dist="l2")
    answers = answering.live_answers(cell(data=data), lm, detector.layers)
    columns = scoring.single_columns(detector, HashingEmbedder(), answers, asks_itself=False).columns

    def score(**changed):
        other = EmbeddingDiscrepancy(lm, **{"layer": 1, "pool": "token", "dist": "l2", **changed})
        return pytest.approx(other.score(answers.questions, answers.tokens, answers.contexts), rel=1e-3, abs=1e-4)

    assert columns["d_last_token"].scores == score(pool="last")
    assert columns["d_rel_l2"].scores == score(dist="rel_l2")
    assert columns["d_top"].scores == score(layer=2)
    assert columns["d_no_first"].scores == score(drop_first=True)
    centred = EmbeddingDiscrepancy(lm, layer=1, pool="token", dist="l2")
    centred.fit_center(answers.questions, answers.tokens, answers.contexts)
    expected = centred.score(answers.questions, answers.tokens, answers.contexts)
    assert columns["d_centred"].scores == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_more_samples_share_the_reading_of_the_prompt():
    column = scoring.Column(np.zeros(1), tokens=80.0, cpu=5.0, reading=1.0)
    assert column.scaled(2) == (9.0, 160.0)
    assert column.scaled(1) == (5.0, 80.0)
