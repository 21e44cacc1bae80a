import numpy as np

from steelyard.contracts import BadInput, Conformance
from steelyard.rng import generator
from toys.robust.core import Running, median_of_means


def run(seed, dtype):
    values = generator("check", "values", seed).normal(size=50).astype(dtype)
    return {"estimate": np.asarray(median_of_means(values)), "count": np.asarray(50)}


def pair(blocks):
    values = generator("check", "values", 0).normal(size=50)
    return {"y": np.asarray(median_of_means(values, blocks))}, {"y": np.asarray(values.mean())}


def resumed():
    values = generator("check", "values", 0).normal(size=50)
    whole, first = Running(), Running()
    for value in values:
        whole.add(value)
    for value in values[:25]:
        first.add(value)
    second = Running(first.state())
    for value in values[25:]:
        second.add(value)
    return {"total": np.asarray(whole.total)}, {"total": np.asarray(second.total)}


def untouched():
    values = generator("check", "values", 0).normal(size=50)
    before = values.copy()
    median_of_means(values)
    return {"values": before}, {"values": values}


def acceptance(estimate):
    values = generator("check", "accept", 0).normal(3.0, size=200)
    values[0] += 1000.0
    error = abs(float(estimate(values)) - 3.0)
    assert error < 0.5, f"an outlier moves the estimate by {error:g}"


CONFORMANCE = Conformance(
    run=run,
    dtypes=("float32", "float64"),
    bad_inputs=(
        BadInput("no values", lambda: median_of_means([]), "values"),
        BadInput("NaN", lambda: median_of_means([float("nan")]), "values"),
        BadInput("no blocks", lambda: median_of_means([1.0], 0), "blocks"),
    ),
    noop=lambda: pair(1),
    effect=lambda: pair(5),
    resumed=resumed,
    untouched=untouched,
    implementation=median_of_means,
    acceptance=acceptance,
    dummies={
        "constant": lambda _: 0.0,
        "random": lambda values: generator("check", "dummy", 0).choice(values[:2]) + 100.0,
        "identity": lambda values: values[0],
    },
)
