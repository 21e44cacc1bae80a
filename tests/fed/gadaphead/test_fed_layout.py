"""How a model's arrays divide into trunk and head, and back."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard.errors import InputError, MissingExtraError
from steelyard.fed.gadaphead.layout import head_layout

FLOATS = st.floats(-10, 10, width=32)


def model(*, features: int = 3, outputs: tuple[int, ...] = (2,), bias: bool = True) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    arrays = {"conv": generator.normal(size=(2, 2, 3)), "count": np.array(7), "scale": np.float32([1.0])}
    for i, k in enumerate(outputs):
        arrays[f"head{i}.weight"] = generator.normal(size=(k, features)).astype(np.float32)
        if bias:
            arrays[f"head{i}.bias"] = generator.normal(size=k).astype(np.float32)
    return arrays


def is_head(name: str) -> bool:
    return name.startswith("head")


@st.composite
def models(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Any trunk, and a head of any arrays, linear layers or not."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, max_side=3)
    kinds = st.sampled_from(["float32", "float64"])
    trunk = draw(st.lists(hnp.arrays(draw(st.sampled_from(["float32", "int64"])), shapes), min_size=1, max_size=3))
    head = draw(st.lists(hnp.arrays(draw(kinds), shapes, elements=FLOATS), min_size=1, max_size=4))
    named = [(f"trunk{i}", values) for i, values in enumerate(trunk)] + [(f"head{i}", v) for i, v in enumerate(head)]
    return dict(draw(st.permutations(named)))


@given(models(), st.booleans())
def test_taking_apart_and_putting_together_loses_nothing(arrays: dict[str, np.ndarray], features_last: bool) -> None:
    layout = head_layout(arrays, head_predicate=is_head, features_last=features_last)
    trunk, head = layout.split(arrays)
    assert head.shape == layout.head_shape
    assert head.size == sum(arrays[name].size for name in layout.head)
    back = {**trunk, **layout.unpack(head)}
    assert set(back) == set(arrays)
    for name, values in arrays.items():
        np.testing.assert_array_equal(back[name], values)
        assert back[name].dtype == values.dtype
        assert back[name].shape == values.shape


@given(st.integers(1, 4), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_a_packed_head_is_applied_to_features(
    features: int, outputs: list[int], bias: bool, features_last: bool
) -> None:
    """phi @ packed is what the layers give, side by side; the bias belongs to a constant feature."""
    arrays = model(features=features, outputs=tuple(outputs), bias=bias)
    layers = [arrays[f"head{i}.weight"] for i in range(len(outputs))]
    if not features_last:
        arrays = {name: values.T if name.endswith("weight") else values for name, values in arrays.items()}
    layout = head_layout(arrays, head_predicate=is_head, features_last=features_last)
    _, head = layout.split(arrays)
    phi = np.random.default_rng(1).normal(size=(5, features))
    expected = [phi @ layer.T + (arrays[f"head{i}.bias"] if bias else 0.0) for i, layer in enumerate(layers)]
    extended = np.column_stack([phi, np.ones(5)]) if bias else phi
    np.testing.assert_allclose(extended @ head, np.concatenate(expected, axis=1), rtol=1e-5, atol=1e-6)
    for name, values in layout.unpack(head).items():
        np.testing.assert_array_equal(values, arrays[name])


@given(models(), st.floats(-0.4, 0.4))
def test_averages_come_back_in_the_models_types(arrays: dict[str, np.ndarray], shift: float) -> None:
    layout = head_layout(arrays, head_predicate=is_head)
    small = {name: np.clip(v, -1000, 1000) if v.dtype.kind == "i" else v for name, v in arrays.items()}
    moved = layout.typed({name: values.astype(np.float64) + shift for name, values in small.items()})
    same = layout.typed(arrays)
    for name, values in small.items():
        assert moved[name].dtype == values.dtype
        assert moved[name].shape == values.shape
        if values.dtype.kind == "i":
            np.testing.assert_array_equal(moved[name], values)
        np.testing.assert_array_equal(same[name], arrays[name])


def test_what_is_no_set_of_linear_layers_is_laid_flat() -> None:
    flat = {"t": np.zeros(1), "head.a": np.zeros((2, 3)), "head.b": np.zeros(5)}
    assert head_layout(flat, head_predicate=is_head).head_shape == (11,)
    assert head_layout({**flat, "head.b": np.zeros(2)}, head_predicate=is_head).head_shape == (4, 2)
    assert head_layout({"t": np.zeros(1), "head": np.zeros(4)}, head_keys=["head"]).head_shape == (4,)
    unlike = {"t": np.zeros(1), "head.a": np.zeros((2, 3)), "head.b": np.zeros((2, 4))}
    assert head_layout(unlike, head_predicate=is_head).head_shape == (14,)


def test_a_head_that_is_nothing_or_everything() -> None:
    arrays = model()
    names = "conv, count, scale, head0.weight, head0.bias"
    for chosen, words in (
        ({"head_predicate": lambda name: False}, f"head_predicate matches none of the model's arrays: {names}$"),
        ({"head_predicate": lambda name: True}, f"head_predicate matches all of the model's arrays.*: {names}$"),
        ({"head_keys": list(arrays)}, f"head_keys matches all .*: {names}$"),
        ({"head_keys": []}, f"head_keys matches none .*: {names}$"),
        ({"head_keys": ["head0.weigth"]}, r"'head0.weigth', which is not in .* Did you mean 'head0.weight'\?"),
        ({"head_keys": "head0.weight"}, r"write \['head0.weight'\]"),
        ({"head_keys": ["count"]}, "'count' of the head holds int64, which cannot be mixed"),
        ({}, "either head_keys or head_predicate"),
        ({"head_keys": ["conv"], "head_predicate": is_head}, "either head_keys or head_predicate"),
    ):
        with pytest.raises(InputError, match=words):
            head_layout(arrays, **chosen)
    many = {f"layer{i}": np.zeros(1) for i in range(30)}
    with pytest.raises(InputError, match=r"layer19 and 10 more$"):
        head_layout(many, head_predicate=is_head)


def test_models_that_do_not_fit() -> None:
    arrays = model()
    layout = head_layout(arrays, head_predicate=is_head)
    layout.check(arrays)
    for odd, words in (
        ({"conv": np.zeros((2, 2))}, r"'conv' has shape \(2, 2\), not \(2, 2, 3\)"),
        ({"more": np.zeros(1)}, "'more', which the model does not have"),
        ({"scale": np.float32([np.nan])}, "'scale' holds values that are not finite"),
        ({"head0.bias": np.array([np.inf, 0.0])}, "'head0.bias' holds values that are not finite"),
        ({"scale": np.array(["a"])}, "'scale' holds values that are not finite numbers"),
    ):
        with pytest.raises(InputError, match=words):
            layout.check({**arrays, **odd})
    with pytest.raises(InputError, match="lack 'scale'"):
        layout.check({name: values for name, values in arrays.items() if name != "scale"})


@pytest.mark.parametrize("module", ["flower", "flower_client"])
def test_without_flower_the_message_has_the_command(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flwr"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    for name in ("flower", "flower_client"):
        monkeypatch.delitem(sys.modules, f"steelyard.fed.gadaphead.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'steelyard\[flower\]'"):
        __import__(f"steelyard.fed.gadaphead.{module}")
