"""Arms whose result, or misfortune, is chosen by ``config``: ok, raise, nan, hang, hog, die.

With ``TOY_LOG`` set, every run of a cell leaves a line in that file, so that a test sees what ran, and how often.
"""

import os
import signal
import time

import numpy as np
from pydantic import BaseModel

from steelyard.contracts import Arm, BenchSpec, Block, CellInput, Measured, Metric, Profile, Task


class Options(BaseModel, extra="forbid"):
    label: str


def run(cell: CellInput) -> Measured:
    log = os.environ.get("TOY_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{cell.arm} {cell.seed} {os.getpid()} {time.monotonic()}\n")
    noise = cell.rng("noise").normal()
    fate = cell.config.get("fate", "ok")
    if fate == "raise":
        raise ValueError("this arm always fails")
    if fate == "nan":
        return Measured(metrics={"score": float("nan")}, steps=1)
    if fate == "hang":
        time.sleep(600)
    if fate == "hog":
        held = []
        while True:
            held.append(np.ones(2**22))
    if fate == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(cell.params.get("sleep", 0.0))
    score = noise + cell.config.get("bias", 0.0) + 0.01 * cell.rng(cell.arm).normal() + float(cell.data["x"].mean())
    return Measured(
        metrics={"score": score},
        steps=1,
        traces={"walk": ([0.0, 1.0], [noise, score])},
        notes={"pid": os.getpid(), "cwd": os.getcwd()},
    )


def derive(arms):
    best = max((values["score"] for values in arms.values()), default=0.0)
    return {"oracle": {"score": best + 0.001 * len(arms)}} if arms else {}


def user_task(data, label):
    return Task(name="yours", label=label, load=lambda: {"x": np.asarray(data, dtype=np.float64)}, source="yours")


ARMS = (
    Arm(name="biased", label="biased", role="method", config={"bias": 1.0}),
    Arm(name="fair", label="fair", role="baseline"),
    Arm(name="oracle", label="oracle", role="ceiling", derived=True),
    *(
        Arm(name=fate, label=fate, role="ablation", config={"fate": fate})
        for fate in ("raise", "nan", "hang", "hog", "die")
    ),
)


def profile(name, arms, seeds=6, sleep=0.0, **rest):
    return Profile(
        name=name, blocks=(Block(tasks=("noise",), arms=arms),), seeds=seeds, work=100, params={"sleep": sleep}, **rest
    )


BENCH = BenchSpec(
    method="toys.coin",
    tasks=(
        Task(name="noise", label="Noise", load=lambda: {"x": np.zeros(3)}, prepare=lambda a: {"twice": 2 * a["x"]}),
    ),
    arms=ARMS,
    metrics=(Metric(name="score", label="score", better="higher", worst=-10.0),),
    primary="score",
    profiles={
        "quick": profile("quick", ("biased", "fair")),
        "many": profile("many", ("biased", "fair"), seeds=60, sleep=0.02),
        "slow": profile("slow", ("biased", "fair"), seeds=4, sleep=1.0),
        "bad": profile("bad", ("biased", "fair", "raise", "nan"), seeds=2),
        "hang": profile("hang", ("biased", "fair", "hang"), seeds=1, cell_seconds=1.0),
        "hog": profile("hog", ("biased", "fair", "hog"), seeds=1, cell_memory_mb=200),
        "die": profile("die", ("biased", "fair", "die"), seeds=1),
        "clocked": profile("clocked", ("biased", "fair"), seeds=2, sleep=0.2, exclusive=True),
        "gpu": Profile(name="gpu", blocks=(), seeds=1, work=0, recipe="buy a GPU"),
    },
    run=run,
    easy_task="noise",
    derive=derive,
    user_task=user_task,
    options=Options,
)
