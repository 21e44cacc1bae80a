"""GridProbe around a model: what it asks, what it selects with a planted oracle, what it costs."""

import logging

import numpy as np
import pytest

from steelyard.errors import InputError
from steelyard.models.vision.protocols import LMDims
from steelyard.models.vision.tiny_vlm import FULL, LOW, TinyVLM
from steelyard.models.vision.world import tiny_videos
from steelyard.vision import (
    AKS,
    BOLT,
    MDP3,
    GridProbe,
    RandomFrames,
    TopSimilarity,
    UniformFrames,
    compare,
    select_frames,
)

OPTIONS = ("red", "green", "blue", "cyan")


class Oracle:
    """Knows the answer where a clip has evidence, and nothing elsewhere; writes down what it was asked."""

    dims = LMDims(8, 16, 8, 1, 10)

    def __init__(self, evidence, answer=2, low=0.25):
        self.evidence, self.answer, self.low, self.calls = set(evidence), answer, low, []

    def option_logprobs(self, frames, timestamps, question, options, resolution):
        seen = [int(frame[0, 0, 0]) for frame in frames]
        self.calls.append((seen, list(timestamps), question, tuple(options), resolution))
        sure = 1.0 - 1e-9 if self.evidence & set(seen) else self.low
        found = np.full(len(options), (1 - sure) / (len(options) - 1))
        found[self.answer] = sure
        return np.log(found)

    def token_count(self, n_frames, resolution, question, options):
        return n_frames * (4 if resolution is None else 1) + 3


class Cached(Oracle):
    """The same with features and batches."""

    def encode_frames(self, frames, resolution):
        return np.asarray(frames)

    def option_logprobs_batch(self, clips, timestamps, question, options, resolution):
        return np.array(
            [
                self.option_logprobs(clip, times, question, options, resolution)
                for clip, times in zip(clips, timestamps, strict=True)
            ]
        )


def video(count):
    return np.arange(count, dtype=np.float32)[:, None, None, None] * np.ones((1, 2, 2, 3), np.float32)


@pytest.mark.parametrize("kind", [Oracle, Cached])
def test_what_a_model_is_asked(kind):
    model = kind([13])
    found = GridProbe(model, 6, probe_pixels=1).answer(video(36), "Which?", OPTIONS)
    probes, focus = model.calls[:-1], model.calls[-1]
    assert len(probes) == 12
    assert all(len(call[0]) == 6 for call in probes)
    assert all(call[0] == sorted(call[0]) for call in model.calls), "frames are in time order"
    assert all(call[1] == [frame / 36 for frame in call[0]] for call in model.calls)
    assert all(call[2:4] == ("Which?", OPTIONS) for call in model.calls), "no more than question and options"
    assert {call[4] for call in probes} == {1}
    assert focus[0] == found.frame_ids.tolist()
    assert focus[4] is None
    assert found.answer == 2
    assert found.ensemble_probs.argmax() == 2


@pytest.mark.parametrize("k", [6, 12])
def test_every_evidence_cell_is_selected(k):
    draws = np.random.default_rng(0)
    for many in (1, 2, 3, 4):
        rows, columns = (draws.permutation(k)[:many] for _ in range(2))
        evidence = (rows * k + columns).tolist()
        found = GridProbe(Oracle(evidence), k, probe_pixels=1).select(video(k * k), "Which?", OPTIONS)
        assert found.answer is None
        if many <= 2:
            assert set(evidence) <= set(found.frame_ids.tolist()), "by the automatic budget"
        assert set(evidence) <= set(select_frames(found.importance, many**2).tolist()), "at a budget of m^2"
        assert found.needed == many**2


def test_the_right_answer_plays_no_part():
    one = GridProbe(Oracle([7], answer=0), 5, probe_pixels=1).select(video(25), "Which?", OPTIONS)
    other = GridProbe(Oracle([7], answer=3), 5, probe_pixels=1).select(video(25), "Which?", OPTIONS)
    assert one.frame_ids.tolist() == other.frame_ids.tolist()


def test_batched_and_single_probes_agree():
    model = TinyVLM(3).eval()
    one = tiny_videos(np.random.default_rng(0), 1, 64)[0]
    found = [
        GridProbe(model, 8, probe_pixels=LOW, **options).select(
            one.frames, one.question, one.options, timestamps=one.timestamps
        )
        for options in ({}, {"batch_probes": False}, {"probe_batch_size": 3})
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other.importance, found[0].importance, rtol=1e-5)


def test_longer_and_shorter_videos():
    model = Oracle([99])
    long = GridProbe(model, 4, probe_pixels=1).answer(video(100), "Which?", OPTIONS)
    assert long.sampled.ravel().tolist() == np.round(np.linspace(0, 99, 16)).astype(int).tolist()
    assert 99 in long.frame_ids
    assert long.padded == 0
    short = GridProbe(Oracle([5]), 4, probe_pixels=1).answer(video(6), "Which?", OPTIONS)
    assert short.padded == 10
    assert short.sampled.ravel().tolist() == [0, 1, 2, 3, 4, 5] + [5] * 10
    assert short.frame_ids.tolist() == sorted(set(short.frame_ids.tolist())), "doubles are read once"


def test_costs_are_added_up():
    found = GridProbe(Oracle([3]), 4, probe_pixels=1).answer(video(16), "Which?", OPTIONS)
    cost = found.cost
    assert cost.probes.tokens == 8 * (4 + 3)
    assert cost.focus.tokens == 4 * len(found.frame_ids) + 3
    assert cost.monolithic.tokens == 4 * 16 + 3
    assert cost.fine_probes.tokens == 8 * (4 * 4 + 3)
    assert cost.ratio == pytest.approx(cost.monolithic.flops / (cost.probes.flops + cost.focus.flops))
    assert cost.full_resolution_ratio < cost.ratio


def test_a_model_that_hides_its_sizes_has_no_operations():
    class Hidden(Oracle):
        dims = None

    assert GridProbe(Hidden([3]), 4, probe_pixels=1).answer(video(16), "Which?", OPTIONS).cost.ratio is None


def test_probes_as_fine_as_the_answer_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        found = GridProbe(Oracle([3]), 4, probe_pixels="focus").answer(video(16), "Which?", OPTIONS)
    assert "probe_pixels='focus'" in caplog.text
    assert found.settings["probe_pixels"] is None
    assert found.cost.full_resolution_ratio == pytest.approx(found.cost.ratio)


def test_turning_the_options_removes_a_bias_of_position():
    class Biased(Oracle):
        def option_logprobs(self, frames, timestamps, question, options, resolution):
            logs = np.zeros(len(options))
            logs[0] = 3.0  # whatever stands first
            logs[list(options).index("blue")] += 1.0 if self.evidence & {int(f[0, 0, 0]) for f in frames} else 0.0
            return logs

    plain = GridProbe(Biased([5]), 4, probe_pixels=1).answer(video(16), "Which?", OPTIONS)
    turned = GridProbe(Biased([5]), 4, probe_pixels=1, debias="permute").answer(video(16), "Which?", OPTIONS)
    assert plain.ensemble_probs.argmax() == 0
    assert turned.ensemble_probs.argmax() == 2
    assert turned.cost.probes.tokens == 4 * plain.cost.probes.tokens


def test_another_model_may_answer():
    reader = Oracle([3], answer=1)
    found = GridProbe(Oracle([3]), 4, probe_pixels=1).answer(video(16), "Which?", OPTIONS, qa_model=reader)
    assert found.answer == 1
    assert len(reader.calls) == 1


def test_a_fixed_budget_and_lists_of_pictures():
    found = GridProbe(Oracle([3]), 4, probe_pixels=1, budget=5).select(list(video(16)), "Which?", OPTIONS)
    assert found.m_eff == 5
    assert len(found.frame_ids) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "probe_pixels: say"),
        ({"probe_pixels": 1, "k": 1}, "k must"),
        ({"probe_pixels": 1, "alpha": -1.0}, "alpha"),
        ({"probe_pixels": 1, "rule": "best"}, "rule"),
        ({"probe_pixels": 1, "budget": 0}, "budget"),
        ({"probe_pixels": 1, "debias": "shuffle"}, "debias"),
        ({"probe_pixels": 1, "probe_batch_size": 0}, "probe_batch_size"),
    ],
)
def test_settings_that_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        GridProbe(Oracle([1]), **options)


def test_a_probe_without_an_answer_is_named():
    class Broken(Oracle):
        def option_logprobs(self, frames, timestamps, question, options, resolution):
            return np.full(len(options), np.nan)

    with pytest.raises(InputError, match="probe 0"):
        GridProbe(Broken([1]), 4, probe_pixels=1).select(video(16), "Which?", OPTIONS)
    for bad in (None, 5):
        with pytest.raises(InputError, match="frames"):
            GridProbe(Oracle([1]), 4, probe_pixels=1).select(bad, "Which?", OPTIONS)
    with pytest.raises(InputError, match="question"):
        GridProbe(Oracle([1]), 4, probe_pixels=1).select(video(4), " ", OPTIONS)


SCORES = np.array([0.1, 0.9, 0.2, 0.8, 0.1, 0.1, 0.7, 0.1])


def test_selectors_choose_as_many_as_asked_in_time_order():
    draws = np.random.default_rng(0)
    pictures = draws.normal(size=(40, 4))
    scores = pictures @ np.ones(4)
    selectors = [
        UniformFrames(), RandomFrames(draws), TopSimilarity(lambda *_: scores), AKS(lambda *_: scores),
        BOLT(lambda *_: scores), MDP3(lambda *_: (pictures, np.ones(4)), segment=16),
    ]  # fmt: skip
    for selector in selectors:
        for budget in (1, 3, 17, 40):
            chosen = selector.select(video(40), "Which?", OPTIONS, budget)
            assert len(chosen) == budget, type(selector).__name__
            assert (np.diff(chosen) > 0).all()
        with pytest.raises(InputError, match="budget must be from 1 to 40"):
            selector.select(video(40), "Which?", OPTIONS, 41)


def test_the_best_frames_by_similarity():
    assert TopSimilarity(lambda *_: SCORES).select(video(8), "", OPTIONS, 3).tolist() == [1, 3, 6]
    assert AKS(lambda *_: SCORES).select(video(8), "", OPTIONS, 2).tolist() == [1, 3], "they stand out"


def test_aks_spreads_where_nothing_stands_out():
    ramp = np.linspace(0.5, 0.6, 64) * 0 + np.tile([0.4, 0.6], 32)
    chosen = AKS(lambda *_: ramp, threshold=0.9).select(video(64), "", OPTIONS, 8)
    assert (np.bincount(chosen // 16, minlength=4) == 2).all(), "each quarter has its share"


def test_mdp3_prefers_what_differs():
    pictures = np.array([[1.0, 0.0], [1.0, 0.001], [1.0, 0.002], [0.9, 0.5]])
    chosen = MDP3(lambda *_: (pictures, np.array([1.0, 0.1])), weight=5.0).select(video(4), "", OPTIONS, 2)
    assert 3 in chosen, "two alike are worth less than two that differ"


def test_one_table_of_selectors():
    model = Oracle([5])
    one = tiny_videos(np.random.default_rng(0), 1, 16)[0]._replace(frames=video(16), answer=2)
    table = compare({"uniform": UniformFrames(), "best": TopSimilarity(lambda *_: np.eye(16)[5])}, [one], model, 2)
    assert [row.accuracy for row in table] == [0.0, 1.0]
    assert table[0].tokens == 11
    with pytest.raises(InputError, match="questions"):
        compare({}, [], model, 2)


def test_resolutions_of_the_small_model():
    model = TinyVLM()
    assert model.token_count(12, LOW, "", ()) == 15
    assert model.token_count(12, FULL, "", ()) == 51
