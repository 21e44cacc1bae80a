import numpy as np
import pytest
import scipy.sparse
import torch
from lattice_toys import digits_split
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from steelyard.errors import InputError
from steelyard.nets.lattice.sklearn import LatticeClassifier

pytestmark = pytest.mark.filterwarnings("ignore::steelyard.nets.lattice.training.HaltingWarning")
SMALL = {"max_channels": 4, "max_layers": 2, "max_steps": 3, "epochs": 4, "readout_scale": 2.0, "batch_size": 50}


@pytest.fixture(scope="module")
def data():
    x, y, test_x, test_y = digits_split()
    names = np.array([f"digit {n}" for n in range(10)])
    return x.numpy()[:800], names[y.numpy()[:800]], test_x.numpy()[:200], names[test_y.numpy()[:200]]


@pytest.fixture(scope="module")
def fitted(data):
    return LatticeClassifier(**SMALL).fit(data[0], data[1])


def test_it_learns_digits_with_named_classes(data, fitted):
    assert fitted.classes_.tolist() == [f"digit {n}" for n in range(10)]
    assert fitted.score(data[2], data[3]) > 0.6
    assert fitted.n_features_in_ == 64


def test_probabilities_and_times(data, fitted):
    probabilities, times = fitted.predict_proba(data[2]), fitted.predict_time(data[2])
    assert probabilities.shape == (200, 10)
    assert probabilities.sum(1) == pytest.approx(np.ones(200), abs=1e-5)
    assert (fitted.classes_[probabilities.argmax(1)] == fitted.predict(data[2])).all()
    with torch.no_grad():
        assert times == pytest.approx(fitted.model_(torch.from_numpy(data[2])).expected_time.numpy(), abs=1e-5)
    assert times.shape == (200,)


def test_image_shapes_are_the_same_images(data, fitted):
    flat, plane = data[2].reshape(200, 64), data[2][:, 0]
    wanted = fitted.predict_proba(data[2])
    assert np.array_equal(fitted.predict_proba(flat), wanted)
    assert np.array_equal(fitted.predict_proba(plane.tolist()), wanted)
    assert np.array_equal(fitted.predict_proba(data[2][:1]), fitted.predict_proba(flat[:1]))


def test_more_images_than_a_batch(data, fitted):
    many = np.concatenate([data[0]] * 2)
    assert np.allclose(fitted.predict_time(many)[:800], fitted.predict_time(data[0]), atol=1e-5)


def test_clone_and_params():
    model = LatticeClassifier(**SMALL, breadth=0.1, time="fixed", occlusion=(0, 4))
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(depth=0.2).depth == 0.2
    assert not hasattr(copy, "model_")


def test_equal_seeds_give_equal_models(data):
    first, again, other = (
        LatticeClassifier(**SMALL | {"epochs": 1}, random_state=s).fit(data[0], data[1]).predict_proba(data[2])
        for s in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_random_state_as_elsewhere_in_sklearn(data):
    def probabilities(state):
        model = LatticeClassifier(**SMALL | {"epochs": 1}, random_state=state)
        return model.fit(data[0][:200], data[1][:200]).predict_proba(data[2][:20])

    first, again = (probabilities(np.random.RandomState(3)) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(probabilities(None), probabilities(None))
    assert np.array_equal(probabilities(np.int64(0)), probabilities(0))


def test_inside_a_pipeline_and_cross_validation(data):
    flat = data[0].reshape(len(data[0]), -1)[:200] * 16
    pipeline = make_pipeline(FunctionTransformer(lambda x: x / 16), LatticeClassifier(**SMALL | {"epochs": 1}))
    scores = cross_val_score(pipeline, flat, data[1][:200], cv=2)
    assert len(scores) == 2


def test_flat_rows_that_are_no_square(data):
    wide = data[0][:100, 0, :6, :].reshape(100, 48)
    model = LatticeClassifier(**SMALL | {"epochs": 1}, image_shape=(6, 8)).fit(wide, data[1][:100])
    assert model.model_.in_channels == 1
    stacked = LatticeClassifier(**SMALL | {"epochs": 1}, image_shape=(2, 4, 8)).fit(
        data[0][:100].reshape(100, 64), data[1][:100]
    )
    assert stacked.model_.in_channels == 2


X, Y = np.zeros((6, 1, 8, 8)), np.arange(6) % 2


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: LatticeClassifier(**SMALL).fit(X, Y[:3]), "y"),
        (lambda: LatticeClassifier(**SMALL).fit(X, np.zeros(6)), "y holds 1 class"),
        (lambda: LatticeClassifier(**SMALL).fit(np.zeros((6, 63)), Y), "image_shape"),
        (lambda: LatticeClassifier(**SMALL, image_shape=(3, 8)).fit(np.zeros((6, 64)), Y), "image_shape"),
        (lambda: LatticeClassifier(**SMALL).fit(np.zeros(6), Y), "X"),
        (lambda: LatticeClassifier(**SMALL).fit(X[:0], Y[:0]), "X"),
        (lambda: LatticeClassifier(**SMALL).fit([["a"] * 64] * 6, Y), "X"),
        (lambda: LatticeClassifier(**SMALL).fit(X + 7, Y), "input_range"),
        (lambda: LatticeClassifier(**SMALL).fit(X * np.nan, Y), "NaN"),
        (lambda: LatticeClassifier(**SMALL | {"max_steps": 1}).fit(X, Y), "max_steps"),
        (lambda: LatticeClassifier(**SMALL).fit(X, [0, 1, 0, 1, 0, np.nan]), "y holds NaN"),
        (lambda: LatticeClassifier(**SMALL).fit(X, np.array(["a", "b", "a", "b", "a", np.nan], object)), "y must"),
        (lambda: LatticeClassifier(**SMALL).fit(X, np.array(["a", "b", "a", "b", "a", None], object)), "y must"),
        (lambda: LatticeClassifier(**SMALL).fit(X, np.linspace(0.1, 1.2, 6)), "y must hold class labels"),
        (lambda: LatticeClassifier(**SMALL, random_state="a").fit(X, Y), "random_state"),
        (lambda: LatticeClassifier(**SMALL, random_state=1.5).fit(X, Y), "random_state"),
        (lambda: LatticeClassifier(**SMALL, image_shape=(-4, -16)).fit(np.zeros((6, 64)), Y), "image_shape"),
        (lambda: LatticeClassifier(**SMALL, image_shape=64).fit(np.zeros((6, 64)), Y), "image_shape"),
        (lambda: LatticeClassifier(**SMALL, image_shape=("8", 8)).fit(np.zeros((6, 64)), Y), "image_shape"),
        (lambda: LatticeClassifier(**SMALL, steps=-1).fit(X, Y), "steps must be a price"),
        (lambda: LatticeClassifier(**SMALL, breadth=-1).fit(X, Y), "breadth must be a price"),
        (lambda: LatticeClassifier(**SMALL).fit(scipy.sparse.csr_array(np.zeros((6, 64))), Y), "X must"),
    ],
)
def test_bad_input_is_one_sentence(call, names):
    with pytest.raises(InputError) as caught:
        call()
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_images_than_in_the_fit_are_refused(fitted):
    with pytest.raises(InputError, match="the fit had"):
        fitted.predict(np.zeros((2, 1, 9, 9)))


def test_an_unfitted_classifier_says_so():
    with pytest.raises(NotFittedError):
        LatticeClassifier().predict(X)
