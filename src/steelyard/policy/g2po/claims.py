"""What credit from the graph of states is said to do, as sentences that paired seeds decide; fixed before the full run.

Five points of success and .05 of the area under the learning curve are the smallest gains worth having. Learning is
judged on held-out games at the end and by the mean success of the training rollouts; credit on the key-door chain by
its rank correlation with the exact advantage of the policy that acted.
"""

from __future__ import annotations

from typing import Any

from steelyard.card import Claim

_POINTS, _AREA, _CREDIT = 0.05, 0.05, 0.05
_GAMES = ("alfworld", "household")
_TABLE = "95.0 against GRPO's 72.8 and GiGPO's 86.7 % success on ALFWorld with Qwen2.5-1.5B (second hand, 3 seeds)"
_ORDER = "episode < + node < + values by averaging < + edge in the paper's ablation (second hand, no numbers)"
_CODE = "the authors' code groups by the raw observation"
_NONE = "not of the paper"
_RIVALS = {"grpo": "GRPO", "gigpo": "GiGPO with the same states", "rloo": "RLOO", "dr_grpo": "Dr. GRPO"}


def _above(arm: str, versus: str, metric: str, text: str, margin: float, paper: str, **more: Any) -> Claim:
    name = more.pop("id", f"{metric}_{arm}_{versus}")
    return Claim(
        id=name, text=text, metric=metric, arm=arm, versus=versus, direction=more.pop("direction", "higher"),
        margin=margin, tasks=more.pop("tasks", _GAMES), paper=paper, **more,
    )  # fmt: skip


CLAIMS = (
    *(
        _above("g2po", arm, metric, f"G2PO {words} {name} by {told} or more", margin, _TABLE)
        for arm, name in _RIVALS.items()
        for metric, words, told, margin in (
            ("success", "wins more of the held-out games than", "5 points", _POINTS),
            ("auc", "learns faster than", ".05 of mean training success", _AREA),
        )
    ),
    *(
        _above("g2po", arm, "credit", f"G2PO's credit agrees better with the exact advantage than that of {name}",
               _CREDIT, _NONE, tasks=("chain",))
        for arm, name in {**_RIVALS, "g2po_obs": "G2PO by the raw observation"}.items()
    ),
    _above("g2po_ec", "grpo", "auc", "The edge term alone adds to the episode term", 0.0, _ORDER),
    _above("g2po_nc", "grpo", "auc", "The node term alone adds to the episode term", 0.0, _ORDER),
    _above("g2po", "g2po_nc", "auc", "The edge term adds to episode and node terms", 0.0, _ORDER),
    _above("g2po", "g2po_ec", "auc", "The node term adds to episode and edge terms", 0.0, _ORDER),
    _above("g2po_obs", "grpo", "success", "Grouped by the raw observation, as the authors' code does, G2PO still wins "
           "more of the held-out games than GRPO", _POINTS, _CODE),
    _above("g2po_history", "grpo", "success", "Grouped by the observation and one turn of history, without anything "
           "privileged, G2PO wins more of the held-out games than GRPO", _POINTS, _CODE),
    _above("gigpo_obs", "grpo", "success", "GiGPO grouped by the raw observation is not worse than GRPO by more than 5 "
           "points", 0.0, _NONE, offset=-_POINTS),
    _above("g2po_lam", "g2po_obs", "success", "Rises along the rollout (lam .9) rescue the raw observation", _POINTS,
           "an extension of this library, not of the paper"),
    Claim(
        id="check_finds_raw", text="The check of anchors flags the raw observation: more than a twentieth of the steps "
        "are at an anchor met with different admissible actions", metric="aliased", arm="g2po_obs", versus=0.05,
        direction="higher", tasks=(*_GAMES, "chain"), paper=_NONE,
    ),
    Claim(
        id="overhead", text="Advantages take less than a hundredth of an iteration", metric="overhead", arm="g2po",
        versus=0.01, direction="lower", tasks=_GAMES, paper=".4 % of an iteration of 266 s (second hand)",
    ),
    Claim(
        id="singletons", text="A tenth of the steps or so are at states of their own: fewer than a fifth",
        metric="singletons", arm="g2po", versus=0.2, direction="lower", tasks=_GAMES,
        paper="8.1 % on ALFWorld, 11.9 % on WebShop, about 5 visits a state (second hand)",
    ),
    Claim(
        id="agreement", text="On your rollouts G2PO's credit agrees better with Monte-Carlo advantages of other "
        "rollouts than GRPO's", metric="agreement", arm="g2po", versus="grpo", direction="higher",
        tasks=("user",), paper=_NONE,
    ),
    Claim(
        id="paper_scale", text="22.2 points above GRPO on ALFWorld with a language model of 1.5 billion weights",
        metric="success", arm="g2po", versus="grpo", direction="higher", paper=_TABLE, paper_scale_only=True,
    ),
    Claim(
        id="webshop", text="14.4 points above GRPO on WebShop, in fewer turns", metric="success", arm="g2po",
        versus="grpo", direction="higher", paper="71.2 against 56.8 % (second hand)", paper_scale_only=True,
    ),
)  # fmt: skip
