"""The contestants and what is measured on them.

The cell of ``dear`` trains a controller and plays every fixed policy on the same evaluation debates; :func:`derive`
takes the other arms' figures out of it. Ablations are trained in cells of their own, on the same streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import Arm, Metric, carried, carried_arms


def _arm(name: str, label: str, role: Any, derived: bool = True, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, derived=derived, config=config)


TRAINED = (
    _arm("dear", "DEAR (its cell plays all fixed policies too)", "method", derived=False),
    _arm("no_who", "DEAR without Who: random peers of the same degree", "ablation", derived=False, who="random"),
    _arm("no_how", "DEAR without How: everyone revises", "ablation", derived=False, how="revise"),
    _arm("no_evidence", "DEAR without group evidence", "ablation", derived=False, evidence=False),
    _arm("team_credit", "DEAR, everyone paid for the vote alike", "ablation", derived=False, credit="team"),
    _arm("macro", "DEAR, five sets of peers to choose from", "ablation", derived=False, selection="macro"),
    _arm("identity", "DEAR that knows who is who (fixed team)", "ablation", derived=False, identity=True),
)
FIXED = (
    _arm("best_single", "Best single agent, chosen on other debates", "baseline"),
    _arm("skill_vote", "Vote weighted by each agent's record on other debates, no debate", "baseline"),
    _arm("vote", "Majority vote, no debate", "baseline"),
    _arm("confidence_vote", "Vote by stated confidence, no debate", "baseline"),
    _arm("self_consistency", "Self-consistency at DEAR's calls", "baseline"),
    _arm("mad", "MAD: all read all, 3 rounds", "baseline"),
    _arm("mad_stop", "MAD with early stop", "baseline"),
    _arm("ring", "Ring (sparse MAD)", "baseline"),
    _arm("random_one", "Everyone reads one random peer", "baseline"),
    _arm("reconcile", "ReConcile: all read all with early stop, vote by confidence", "baseline"),
    _arm("critique_stop", "Critique-all with early stop, nothing learned", "baseline"),
    _arm("oracle_speaker", "Oracle: all read an agent that was right", "ceiling"),
    _arm("any_right", "Oracle: any agent right at first", "ceiling"),
)
CURVES = (
    _arm("dear_curve", "DEAR, by price of a call and by conformity", "method", derived=False, policy="dear"),
    _arm("mad_curve", "MAD with early stop, by rounds", "baseline", derived=False, policy="mad_stop"),
    _arm(
        "critique_curve", "Critique-all with early stop, by rounds", "baseline", derived=False, policy="critique_stop"
    ),
    _arm("samples_curve", "Self-consistency, by samples", "baseline", derived=False, policy="self_consistency"),
    _arm("chance_curve", "A random option, any budget", "floor", derived=False, policy="chance"),
)
FLOOR = _arm("chance", "A random option", "floor", derived=False)
ARMS = (*TRAINED, *FIXED, FLOOR, *CURVES)
PLAYED = ("dear", "chance")
ABLATIONS = ("no_who", "no_how", "no_evidence")
VARIANTS = ("team_credit", "macro", "identity")
CURVE_NAMES = tuple(arm.name for arm in CURVES)

METRICS = (
    Metric(name="vote_accuracy", label="Right votes", better="higher", worst=0.0),
    Metric(name="individual_accuracy", label="Right agents at the end", better="higher", worst=0.0),
    Metric(name="initial_accuracy", label="Right agents at first", better="higher"),
    Metric(name="harmful", label="Right to wrong, of all agents (joint)", better="lower", worst=1.0),
    Metric(name="harmful_rate", label="Right to wrong, of those right at first (blind conformity)", better="lower",
           worst=1.0),
    Metric(name="beneficial", label="Wrong to right, of all agents (joint)", better="higher", worst=0.0),
    Metric(name="beneficial_rate", label="Wrong to right, of those wrong at first", better="higher", worst=0.0),
    Metric(name="wrong_majority_followed", label="Right at first, followed a wrong majority (CR)", better="lower",
           worst=1.0),
    Metric(name="unanimous_wrong", label="All wrong alike at first: no controller can help", better="lower"),
    Metric(name="cost", label="Call-units a debate", better="lower"),
    Metric(name="calls", label="Calls a debate", better="lower"),
    Metric(name="tokens", label="Tokens a debate, where counted", better="lower"),
    Metric(name="train_cpu", label="Processor time of the training", better="lower", unit="s"),
)  # fmt: skip


def flat(arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of ``dear``."""
    return carried("dear", arm, values)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every arm that the cell of ``dear`` played, of one task and seed."""
    return carried_arms("dear", arms)
