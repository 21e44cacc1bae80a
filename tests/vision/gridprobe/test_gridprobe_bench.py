"""The bench of GridProbe: arms share questions and probes, seeds are checkpoints, figures add up."""

import numpy as np
import pytest

from steelyard import catalog
from steelyard.contracts import CellInput
from steelyard.models import TinyVLM, tiny_videos
from steelyard.models.vision.tiny_vlm import FULL, LOW
from steelyard.vision.gridprobe import arms, cells

SPEC = catalog.load_bench("gridprobe")


def cell(task="videos64", arm="gridprobe", seed=0, questions=10):
    return CellInput(task, arm, SPEC.arm(arm).config, {"questions": questions}, {}, seed, SPEC.task(task).load())


@pytest.fixture(scope="module")
def measured():
    return cells.run(cell(questions=20))


def test_every_arm_has_its_figures(measured):
    found = arms.derive({"gridprobe": measured.metrics})
    assert set(found) == set(arms.DERIVED)
    for name, figures in found.items():
        assert 0 <= figures["accuracy"] <= 1, name
        kinds = [figures[f"accuracy_{kind}"] for kind in ("specific", "scene", "negation", "count", "order")]
        assert figures["accuracy"] == pytest.approx(np.mean(kinds)), "kinds are asked equally often"
    own = measured.metrics
    assert {"tracking", "easy", "saving", "fine_saving", "uncovered", "count_specific"} <= set(own)
    as_many = ("uniform", "random_frames", "detector", "similarity", "aks", "bolt", "mdp3")
    assert {found[name]["frames"] for name in as_many} == {own["frames"]}
    assert found["monolithic"]["frames"] == 64
    assert found["monolithic"]["mflops"] / own["mflops"] == pytest.approx(own["saving"])
    assert found["ensemble"]["mflops"] < own["mflops"]
    assert found["monolithic"]["hit_rate"] == 1
    assert own["fine_saving"] < own["saving"]


def test_equal_seeds_measure_alike_and_seeds_differ():
    one, again, other = (cells.run(cell(seed=seed, questions=5)) for seed in (0, 0, 1))
    assert one.metrics == again.metrics
    assert one.metrics != other.metrics
    assert (one.notes["checkpoint"], other.notes["checkpoint"]) == (0, 1)


def test_the_floor_needs_no_model():
    assert cells.run(cell(arm="chance")).metrics == {"accuracy": 0.25}


def test_selectors_see_the_question_and_not_the_answer():
    model = TinyVLM.load_default()
    for one in tiny_videos(np.random.default_rng(0), 10, 64):
        asked = cells.Asked(one, model.encode_frames(one.frames, FULL), model.encode_frames(one.frames, LOW))
        swapped = asked._replace(question=one._replace(answer=(one.answer + 1) % 4))
        np.testing.assert_array_equal(cells.detected(model, asked), cells.detected(model, swapped))
        assert cells.words(one) == cells.words(swapped.question)
        if one.kind == "specific":
            scores = cells.detected(model, asked)
            assert scores[one.evidence].min() > np.median(scores)
