"""The contestants and what is measured on them.

On linear clients and on tables the cell of ``gadaphead`` shares the same fits in every way, and :func:`derive` takes
the derived arms' figures out of it. Reinforcement learners train in cells of their own, on the same streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import Arm, Metric, Trace, carried, carried_arms

METHOD = "gadaphead"


def _arm(name: str, label: str, role: Any, derived: bool = False, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, derived=derived, config=config)


SHARED = (
    _arm("group_loo", "Mean of the others in the group (strength 1)", "ablation", derived=True),
    _arm("group_mean", "Plain mean of the group, itself included", "baseline", derived=True),
    _arm("fixed_half", "Half and half, whoever it is", "ablation", derived=True),
    _arm("wrong_groups", "Adaptive, in groups drawn at random", "ablation", derived=True),
    _arm("one_group", "Adaptive, all in one group", "ablation", derived=True),
    _arm("plain_plugin", "Adaptive, plain plug-in strength", "ablation", derived=True),
    _arm("split", "Adaptive, variance of two halves", "ablation", derived=True),
    _arm("iterates", "Adaptive, variance of iterates", "ablation", derived=True),
    _arm("euclidean", "Adaptive, distances of the weights", "ablation", derived=True),
    _arm("sattler", "Adaptive, groups by bipartition", "ablation", derived=True),
    _arm("oracle_groups", "Oracle: planted groups, best strength", "ceiling", derived=True),
)
ARMS = (
    _arm(METHOD, "GAdapHead: adaptive sharing in groups", "method"),
    _arm("local", "Local: nothing is shared", "baseline"),
    _arm("fedavg", "FedAvg: one mean for all", "baseline"),
    _arm("fedprox", "FedProx: FedAvg with a pull to the mean", "baseline", prox_mu=0.001),
    _arm("fedper", "FedPer: the trunk is shared, heads are not", "baseline"),
    _arm("fedrep", "FedRep: FedPer with heads first, then trunks", "baseline", alternate=True),
    _arm("clustered", "Clustered: the group's plain mean of heads", "baseline"),
    _arm("centralised", "One central learner that is told the task", "baseline"),
    *SHARED,
    _arm("zero", "Floor: a head of zeros", "floor"),
    _arm("random", "Floor: random actions", "floor"),
    _arm("oracle_lambda", "Oracle: the same groups, best strength", "ceiling"),
    _arm("local_long", "Local with four times the rounds", "ceiling"),
)
ONCE = (METHOD, "local", "fedavg", "zero", "oracle_lambda")  # cells on linear clients and on tables
TRAINED = (METHOD, "fedper", "local", "fedavg", "clustered", "centralised", "random")
CONTROL = (METHOD, "fedper", "local", "centralised", "random")

METRICS = (
    Metric(name="mse", label="Mean squared error, mean of clients", better="lower"),
    Metric(name="return_mean", label="Greedy return, mean of clients", better="higher", worst=0.0),
    Metric(name="worst_mse", label="Mean squared error, worst client", better="lower"),
    Metric(name="return_worst", label="Greedy return, worst client", better="higher", worst=0.0),
    Metric(name="return_std", label="Deviation over clients, of shares of long training", better="lower"),
    Metric(name="auc", label="Greedy return, mean over rounds and clients", better="higher", worst=0.0),
    Metric(name="converged", label="Share of converged tasks (90 % of long training, twice)", better="higher",
           worst=0.0),
    Metric(name="ari", label="Planted groups found at the end (adjusted Rand)", better="higher", worst=0.0),
    Metric(name="ari_mid", label="Planted groups found half way", better="higher", worst=0.0),
    Metric(name="ari_early", label="Planted groups found in the first five rounds", better="higher", worst=0.0),
    Metric(name="strength", label="Mean strength of sharing", better="higher"),
    Metric(name="uploaded", label="Uploaded by a client a round", better="lower", unit="kB"),
)  # fmt: skip
TRACES = (
    Trace(name="return", label="Greedy return while training", x_label="round", y_label="mean of clients"),
    Trace(name="strength", label="Strength of sharing", x_label="round", y_label="mean of clients"),
    Trace(name="ari", label="Planted groups found", x_label="round", y_label="adjusted Rand index"),
)


def flat(arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of ``gadaphead``."""
    return carried(METHOD, arm, values)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every arm that the cell of ``gadaphead`` computed, of one task and seed."""
    return carried_arms(METHOD, arms)
