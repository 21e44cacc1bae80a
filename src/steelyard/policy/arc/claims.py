"""What commitments are said to do, as sentences that paired seeds decide; fixed before the full run.

Two points of success are the smallest gain worth having. Inconsistency is read from the episodes in which a policy is
evaluated, never from those that it learned from, and never without the success beside it.
"""

from __future__ import annotations

from typing import Any

from steelyard.card import Claim

_GAMES = ("alfworld", "household")
_POINTS = 0.02
_ABSTRACT = "+6.4 points on ALFWorld, +3.5 on WebShop, +9.6 on WebArena over the strongest baseline (abstract)"
_DECOUPLED = "independent normalisation keeps sparse and dense signals from interfering (abstract, no number)"
_DRIFT = "process rewards on free-form reasoning reduce but do not remove it (abstract, no number)"
_NONE = "not of the paper: a control of this library"


def _claim(name: str, text: str, metric: str, versus: str | float, paper: str, **more: Any) -> Claim:
    return Claim(
        id=name, text=text, metric=metric, arm=more.pop("arm", "arc"), versus=versus,
        direction=more.pop("direction", "higher"), tasks=more.pop("tasks", _GAMES), paper=paper, **more,
    )  # fmt: skip


CLAIMS = (
    _claim("above_outcome", "Commitments win 2 points or more of held-out games over the outcome alone, same form",
           "success", "outcome", _ABSTRACT, margin=_POINTS),
    _claim("less_inconsistent", "Fewer turns of evaluation episodes contradict an observation than with the outcome "
           "alone", "inconsistency", "outcome", _ABSTRACT, direction="lower"),
    _claim("above_coupled_routed", "Normalised apart, the signals win at least as many held-out games as normalised "
           "together and sent to the same decisions, within 2 points", "success", "coupled_routed", _DECOUPLED,
           offset=-_POINTS),
    _claim("better_than_coupled_routed", "Normalised apart, the signals win 2 points or more over normalised together "
           "and sent to the same decisions", "success", "coupled_routed", _DECOUPLED, margin=_POINTS),
    _claim("above_coupled", "Commitments win 2 points or more over one sum of outcome and process reward", "success",
           "coupled", _DECOUPLED, margin=_POINTS),
    _claim("above_freeform", "Required statements win 2 points or more over free ones with a penalty", "success",
           "freeform", _DRIFT, margin=_POINTS),
    _claim("freeform_silent", "Under a penalty alone, an agent leaves more unsaid than one that must commit itself",
           "unsaid", 0.05, _DRIFT, arm="freeform"),
    _claim("faster", "Commitments learn faster: .02 of mean training success or more over the outcome alone", "auc",
           "outcome", _ABSTRACT, margin=_POINTS),
    _claim("truer_statements", "Statements are right more often on held-out games", "statements", "outcome", _ABSTRACT),
    _claim("truer_predictions", "Predictions are right more often on held-out games", "predictions", "outcome",
           _ABSTRACT),
    _claim("step_collapses", "On every token the process part costs at least 10 points of success against routing it "
           "(half the iterations: it has collapsed by then)", "success", "arc", _NONE, arm="arc_step",
           direction="lower", margin=0.1),
    _claim("to_go", "Each part of the statement with reward to go wins as many games, within 2 points", "success",
           "arc", _NONE, arm="arc_comp", offset=-_POINTS),
    _claim("near_truth", "Remembering by statement costs at most 10 points against being told the true state",
           "success", "true_state", _NONE, offset=-0.1),
    _claim("failed_inconsistent", "Of failed episodes of the outcome alone, 74 % or more have an inconsistency",
           "failed_inconsistent", 0.74, "74 % of failed trajectories (abstract)", arm="outcome"),
    _claim("persistent", "Of turns after the first inconsistency, 62 % or more are inconsistent, outcome alone",
           "persistence_onset", 0.62, "62 % of later turns (abstract)", arm="outcome"),
    _claim("offline", "On your rollouts the two parts keep their own weight: each signal's rank correlation with its "
           "part of the credit is higher apart than together", "own_weight", "coupled", _DECOUPLED, tasks=("user",)),
    _claim("paper_scale", "6.4 points above the strongest baseline on ALFWorld with a language model", "success",
           "outcome", _ABSTRACT, tasks=None, paper_scale_only=True),
)  # fmt: skip
