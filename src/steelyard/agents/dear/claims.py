"""What the controller is said to do, as sentences that paired seeds decide; fixed before any evaluation seed was run.

A gain of half a point is the smallest worth having. "At least X" is told in two claims: not more than half a point
below (the lower limit of the interval), and half a point above, which the verdict's stricter rule asks of the lower
limit as well and not of the estimate alone (decision D16). The claims on the controller that knows who is who were
added later, from what tuning seeds showed.
"""

from __future__ import annotations

import math

from steelyard.card import Claim

_HALF_POINT = 0.005
_DEBATED = ("sim", "sim_mild", "committee", "user")
_TEAMS = ("sim", "committee")  # where the controller that knows who is who is trained
_ACCURACY = "better accuracy than fixed topologies (second hand, no figure known)"
_COST = "significantly fewer tokens than fixed topologies (second hand, no figure known)"
_OURS = "not of the paper: an honest baseline"
_RIVALS = {
    "mad": ("MAD", _ACCURACY),
    "mad_stop": ("MAD with early stop", _ACCURACY),
    "critique_stop": ("critique-all with early stop, which learns nothing", _OURS),
    "vote": ("the majority vote without debate", _OURS),
    "self_consistency": ("self-consistency at equal calls", _OURS),
}


def _against(arm: str, name: str, paper: str) -> tuple[Claim, Claim]:
    common = {"metric": "vote_accuracy", "arm": "dear", "versus": arm, "direction": "higher", "tasks": _DEBATED}
    return (
        Claim(
            id=f"not_below_{arm}", text=f"DEAR's votes are right at most half a point less often than those of {name}",
            offset=-_HALF_POINT, paper=paper, **common,
        ),
        Claim(
            id=f"above_{arm}", text=f"DEAR's votes are right more often than those of {name}, by half a point or more",
            margin=_HALF_POINT, paper=paper, **common,
        ),
    )  # fmt: skip


def _with_identity(arm: str, name: str) -> Claim:
    return Claim(
        id=f"identity_above_{arm}", text="A controller that knows who is who is right more often than "
        f"{name}, by half a point or more", metric="vote_accuracy", arm="identity", versus=arm, direction="higher",
        margin=_HALF_POINT, tasks=_TEAMS, paper="not of the paper: for a team that stays the same",
    )  # fmt: skip


def _ablation(arm: str, what: str) -> Claim:
    return Claim(
        id=f"{arm}_loses", text=f"DEAR's votes are right more often than those {what}", metric="vote_accuracy",
        arm="dear", versus=arm, direction="higher", tasks=("sim",),
        paper="the three stages are the paper's; no ablation of it is known",
    )  # fmt: skip


CLAIMS = (
    *(claim for arm, (name, paper) in _RIVALS.items() for claim in _against(arm, name, paper)),
    Claim(
        id="full_reproduction", text="DEAR's votes are right 1.5 points more often than MAD's",
        metric="vote_accuracy", arm="dear", versus="mad", direction="higher", offset=0.015, tasks=_DEBATED,
        paper=_ACCURACY,
    ),
    Claim(
        id="cost_of_mad", text="DEAR costs at most 45 % of MAD's call-units", metric="cost", arm="dear", versus="mad",
        direction="lower", scale="log_ratio", offset=math.log(1 / 0.45), tasks=_DEBATED, paper=_COST,
    ),
    Claim(
        id="cost_of_mad_stop", text="DEAR costs fewer call-units than MAD with early stop", metric="cost", arm="dear",
        versus="mad_stop", direction="lower", scale="log_ratio", tasks=_DEBATED, paper=_COST,
    ),
    Claim(
        id="cost_of_critique_stop", text="DEAR costs fewer call-units than critique-all with early stop", metric="cost",
        arm="dear", versus="critique_stop", direction="lower", scale="log_ratio", tasks=_DEBATED, paper=_OURS,
    ),
    Claim(
        id="less_conformity", text="Fewer agents go from right to wrong than under MAD (joint)", metric="harmful",
        arm="dear", versus="mad", direction="lower", tasks=_DEBATED,
        paper="regulating debate relationships mitigates blind conformity (abstract, qualitative)",
    ),
    Claim(
        id="less_blind_conformity", text="Of the agents right at first, fewer end wrong than under MAD (conditional)",
        metric="harmful_rate", arm="dear", versus="mad", direction="lower", tasks=_DEBATED,
        paper="regulating debate relationships mitigates blind conformity (abstract, qualitative)",
    ),
    Claim(
        id="mad_conforms", text="Under MAD at least 5 % of the agents right at first end wrong", metric="harmful_rate",
        arm="mad", versus=0.05, direction="higher", tasks=("committee",),
        paper="models in debate are highly prone to blind conformity (abstract, qualitative); here a modelled response",
    ),
    Claim(
        id="confidence_does_not_help", text="A vote by stated confidence is right at most half a point more often than "
        "the plain vote over the same first answers", metric="vote_accuracy", arm="vote", versus="confidence_vote",
        direction="higher", offset=-_HALF_POINT, tasks=("sim", "committee"),
        paper="confidence does not reflect correctness and may worsen conformity (abstract, qualitative)",
    ),
    Claim(
        id="control_gains_nothing", text="Where debating cannot help, DEAR is as often right as the vote, within half "
        "a point", metric="vote_accuracy", arm="dear", versus="vote", direction="higher", kind="equivalence",
        margin=_HALF_POINT, tasks=("control",), paper="not of the paper: guards against a rigged simulator",
    ),
    _with_identity("critique_stop", "critique-all with early stop"),
    _with_identity("skill_vote", "a vote weighted by each agent's record, without debate"),
    _with_identity("dear", "DEAR that does not"),
    Claim(
        id="identity_cost_of_mad_stop", text="A controller that knows who is who costs fewer call-units than MAD with "
        "early stop", metric="cost", arm="identity", versus="mad_stop", direction="lower", scale="log_ratio",
        tasks=_TEAMS, paper="not of the paper: for a team that stays the same",
    ),
    _ablation("no_who", "of a controller that reads as many random peers"),
    _ablation("no_how", "of a controller whose agents always revise"),
    _ablation("no_evidence", "of a controller without group evidence"),
    Claim(
        id="language_models", text="On language models, DEAR's votes are right more often than under fixed topologies "
        "and take fewer tokens", metric="vote_accuracy", arm="dear", versus="mad", direction="higher",
        paper=f"{_ACCURACY}; {_COST}", paper_scale_only=True,
    ),
)  # fmt: skip
