import numpy as np

from steelyard.contracts import Arm, BenchSpec, Block, Measured, Metric, Profile, Task
from toys.robust.core import median_of_means

TRUTH = 3.0


def run(cell):
    values = TRUTH + cell.rng("noise").normal(size=200) / cell.data["precision"]
    values[7] += 1000.0
    estimates = {
        "robust": lambda: median_of_means(values, cell.config["blocks"]),
        "mean": lambda: values.mean(),
        "zero": lambda: 0.0,
        "knows": lambda: TRUTH,
    }
    return Measured(metrics={"error": abs(float(estimates[cell.arm]()) - TRUTH)}, steps=200)


def profile(name, seeds):
    block = Block(tasks=("outlier",), arms=("robust", "mean", "zero", "knows", "half"))
    return Profile(name=name, blocks=(block,), seeds=seeds, work=200 * 4 * seeds)


BENCH = BenchSpec(
    method="toys.robust",
    tasks=(
        Task("outlier", "One outlier", lambda: {"x": np.ones(1)}, prepare=lambda data: {"precision": 2.0 * data["x"]}),
    ),
    arms=(
        Arm(name="robust", label="median of means", role="method", config={"blocks": 5}),
        Arm(name="mean", label="mean", role="baseline"),
        Arm(name="zero", label="zero", role="floor"),
        Arm(name="knows", label="the truth", role="ceiling"),
        Arm(name="half", label="half of the best", role="ceiling", derived=True),
    ),
    metrics=(Metric(name="error", label="error", better="lower", worst=1000.0),),
    primary="error",
    profiles={"quick": profile("quick", 2), "full": profile("full", 3)},
    run=run,
    easy_task="outlier",
    true_ceiling="knows",
)
