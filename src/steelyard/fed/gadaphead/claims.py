"""What sharing heads is said to do, as sentences that paired seeds decide; fixed before the full run.

Errors are compared by their ratio: a twentieth less is the smallest gain worth having. Every rival is judged at every
number of transitions, also where a second-hand trial had a tie: the plain mean of the group with few transitions, and
averaging over all with the fewest. Returns of the reinforcement learners lie between 0 and 1, or are told as a share
of what long training alone reaches, as their deviation over tasks is everywhere; .02 is the smallest gain worth having.
"""

from __future__ import annotations

import math

from steelyard.card import Claim

LINEAR = ("linear_60", "linear_150", "linear_400", "linear_1500")
_DEEP = ("minigrid", "minigrid_12", "pendulum")
_TWENTIETH, _RETURN = -math.log(1 - 1 / 20), 0.02
_THEORY = "the closed-form strength is governed by mismatch and uncertainty (abstract, no number)"
_GRID = "up to 24.5 % better than personalised federated baselines on MiniGrid, up to 12 tasks (abstract)"
_RATIO = "share of converged tasks 50.0 % to 72.9 % on MetaWorld, up to 50 tasks (abstract)"
_SPREAD = "standard deviation of performance reduced by more than 82.9 % in the largest settings (abstract)"
_OURS = "not of the paper: an honest baseline"
_RIVALS = {
    "local": ("of each client's own head", _THEORY),
    "group_loo": ("of the others' mean alone (strength 1)", _THEORY),
    "fedavg": ("of one mean of all heads", _OURS),
    "group_mean": ("of the plain mean of the group, the client included, which clustered learning takes", _OURS),
    "wrong_groups": ("of the same rule in groups drawn at random", _OURS),
    "one_group": ("of the same rule with all clients in one group", _OURS),
    "fixed_half": ("of half and half for every client", _THEORY),
    "plain_plugin": ("of the plain plug-in strength, whose mismatch is not debiased", _OURS),
    "split": ("of the same rule with the variance of two halves", _OURS),
    "iterates": ("of the same rule with the variance of iterates", _OURS),
}


def _below(arm: str, name: str, paper: str) -> Claim:
    return Claim(
        id=f"below_{arm}", text=f"Adaptive sharing has a mean squared error a twentieth or more below that {name}",
        metric="mse", arm="gadaphead", versus=arm, direction="lower", scale="log_ratio", margin=_TWENTIETH,
        tasks=(*LINEAR, "user"), paper=paper,
    )  # fmt: skip


def _deep(arm: str, name: str, metric: str, what: str, paper: str, tasks: tuple[str, ...] = _DEEP) -> Claim:
    return Claim(
        id=f"{metric}_above_{arm}", text=f"{what} is higher than {name}, by {_RETURN} or more", metric=metric,
        arm="gadaphead", versus=arm, direction="higher", margin=_RETURN, tasks=tasks, paper=paper,
    )  # fmt: skip


CLAIMS = (
    *(_below(arm, name, paper) for arm, (name, paper) in _RIVALS.items()),
    Claim(
        id="near_oracle", text="Adaptive sharing has at most 1.25 times the error of the best strength in hindsight",
        metric="mse", arm="gadaphead", versus="oracle_lambda", direction="lower", scale="log_ratio",
        offset=-math.log(1.25), tasks=LINEAR, paper=_THEORY,
    ),
    Claim(
        id="worst_client", text="The worst client's error is below the worst of clients on their own",
        metric="worst_mse", arm="gadaphead", versus="local", direction="lower", scale="log_ratio",
        tasks=(*LINEAR, "user"), paper=_OURS,
    ),
    Claim(
        id="groups_found", text="The planted groups are found (adjusted Rand index of .8 or more)", metric="ari",
        arm="gadaphead", versus=0.8, direction="higher", tasks=LINEAR, paper="grouping by geometry (abstract)",
    ),
    Claim(
        id="strength_near_oracle",
        text="The mean strength is within .1 of what was best in hindsight in the same groups", metric="strength",
        arm="gadaphead", versus="oracle_lambda", direction="higher", kind="equivalence", margin=0.1,
        tasks=LINEAR, paper=_THEORY,
    ),
    Claim(
        id="shares_when_unsure", text="With 60 transitions the mean strength is above .5", metric="strength",
        arm="gadaphead", versus=0.5, direction="higher", tasks=("linear_60",), paper=_THEORY,
    ),
    Claim(
        id="stops_when_sure", text="With 1,500 transitions the mean strength is below .25", metric="strength",
        arm="gadaphead", versus=0.25, direction="lower", tasks=("linear_1500",), paper=_THEORY,
    ),
    _deep("fedper", "FedPer's", "return_mean", "The mean greedy return", _GRID),
    _deep("fedper", "FedPer's", "return_worst", "The worst client's greedy return", _GRID),
    _deep("fedper", "FedPer's", "auc", "The mean greedy return over the rounds", _GRID),
    *(
        _deep(arm, name, "return_mean", "The mean greedy return", _OURS)
        for arm, name in (
            ("local", "that of clients on their own"), ("fedavg", "FedAvg's"), ("fedprox", "FedProx's"),
            ("fedrep", "FedRep's"), ("clustered", "that of the group's plain mean"),
        )
    ),
    _deep("fedper", "FedPer's", "converged", "The share of converged tasks", _RATIO),
    Claim(
        id="groups_by_mid_training", text="Half way through, the planted groups are found (adjusted Rand index of .8 "
        "or more)", metric="ari_mid", arm="gadaphead", versus=0.8, direction="higher", tasks=_DEEP,
        paper="grouping by geometry (abstract)",
    ),
    Claim(
        id="spread_below_centralised", text="Returns differ less between tasks than under one central learner, by "
        f"{_RETURN} or more", metric="return_std", arm="gadaphead", versus="centralised", direction="lower",
        margin=_RETURN, tasks=_DEEP, paper=_SPREAD,
    ),
    Claim(
        id="spread_as_in_paper", text="Returns differ less between tasks than under one central learner, by 82.9 % or "
        "more", metric="return_std", arm="gadaphead", versus="centralised", direction="lower", scale="log_ratio",
        offset=-math.log(1 - 0.829), tasks=_DEEP, paper=_SPREAD,
    ),
    Claim(
        id="metaworld", text="On MetaWorld 72.9 % of the tasks converge where the personalised baseline has 50.0 %",
        metric="converged", arm="gadaphead", versus="fedper", direction="higher", offset=0.229, paper=_RATIO,
        paper_scale_only=True,
    ),
)  # fmt: skip
