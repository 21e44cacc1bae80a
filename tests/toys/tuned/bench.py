"""The coin with a grid to tune: the largest bias is best."""

import dataclasses

from toys.coin.bench import BENCH as COIN
from toys.coin.bench import profile

BENCH = dataclasses.replace(
    COIN,
    method="toys.tuned",
    profiles={**COIN.profiles, "full": profile("full", ("biased", "fair"), seeds=10)},
    grid={"biased": [{"bias": bias} for bias in (1.0, 3.0, 2.0)], "fair": [{}]},
    tuning_tasks=("noise",),
    tuning_params={"sleep": 0.0},
)
