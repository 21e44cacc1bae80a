"""A failed episode as a picture: what the agent held to be true, and what was."""

from __future__ import annotations

from steelyard.contracts import Diagram, Edge, Node
from steelyard.policy.arc.format import CommitmentFormat
from steelyard.policy.household.tracker import HouseholdTracker
from steelyard.policy.rollouts import Episode

_MOST = 14
_SHORT = 70


def episode_picture(episodes: list[Episode], arm: str) -> Diagram | None:
    """Return the picture of the first failed episode with a wrong statement, None where there is none.

    Turns go to the right; above stands what was stated, below the command. A wrong statement that the next turn
    repeats, as the agent's only memory, is joined to it.
    """
    failed = [
        episode
        for episode in episodes
        if not episode[-1]["success"] and any(step["process"].get("progress", 1.0) < 1 for step in episode)
    ]
    if not failed:
        return None
    episode = failed[0]
    form, tracker = CommitmentFormat(), HouseholdTracker(_task(episode))
    nodes, edges = list[Node](), list[Edge]()
    for place, step in enumerate(episode[:_MOST]):
        said = form.parse(step["action"])
        truth = "; ".join(f"{key}={value}" for key, value in tracker.facts().items())
        right, foreseen = step["process"]["progress"] >= 1, step["process"]["prediction"] >= 1
        nodes += [
            Node(id=f"s{place}", label=_short(said.progress, 18), x=place, y=0, kind="good" if right else "bad",
                 note=f"stated: {_short(said.progress, _SHORT)}. True: {truth}"),
            Node(id=f"a{place}", label=_short(said.action, 18), x=place, y=1,
                 note=f"{_short(said.action, _SHORT)} → {_short(step['next_observation'], _SHORT)}"),
            Node(id=f"p{place}", label=_short(said.prediction, 18), x=place, y=2,
                 kind="good" if foreseen else "bad", note=f"foreseen: {_short(said.prediction, _SHORT)}"),
        ]  # fmt: skip
        edges += [Edge(source=f"s{place}", target=f"a{place}"), Edge(source=f"a{place}", target=f"p{place}")]
        if place:
            kind = "solid" if right else "bad"
            edges.append(Edge(source=f"s{place - 1}", target=f"s{place}", kind=kind))
        tracker.observe(said.action or "", step["next_observation"])
    return Diagram(
        name=f"episode_{arm}",
        title=f"A failed episode: {_task(episode)}",
        caption=f"Statement, command and prediction of the first {min(len(episode), _MOST)} of {len(episode)} turns.",
        nodes=tuple(nodes),
        edges=tuple(edges),
        legend={"good": "right", "bad": "wrong"},
    )


def _task(episode: Episode) -> str:
    return str(episode[0]["observation"]).rpartition("Your task is to: ")[2]


def _short(text: str | None, most: int) -> str:
    words = " ".join((text or "nothing").split())
    return words if len(words) <= most else words[: most - 1] + "…"
