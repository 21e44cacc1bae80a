"""What a controller observes: features of group evidence, of an agent itself and of its peers, for B debates at once.

Nothing here takes a label: `observe` reads ``State``, which has none. All features are equivariant: options may be
renamed and agents permuted (without ``identity``). Reconstruction throughout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.dear.core import dirichlet_opinion, dissonance, divergence, option_shares
from steelyard.agents.dear.episodes import Ints, State, majority, option_counts, stable_since

Features = NDArray[np.float32]

GROUP = (
    "consensus", "divergence", "margin", "clusters", "flip_rate", "belief_max", "vacuity", "dissonance", "drift_max",
)  # fmt: skip
OWN = (
    "own_share", "own_is_majority", "own_flips", "own_moved", "own_drift", "own_stability", "round", "active",
)  # fmt: skip
PEER = (
    "same_answer", "peer_share", "peer_flips", "similarity", "peer_is_majority", "peer_stability",
)  # fmt: skip


class Observation(NamedTuple):
    """``group`` float32 (B, G), ``own`` float32 (B, N, F), ``peers`` float32 (B, N, N, P), zero at i = j."""

    group: Features
    own: Features
    peers: Features


def feature_names(n_agents: int, identity: bool = False) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of the group, own and peer features in order."""
    who = tuple(f"agent_{i}" for i in range(n_agents)) if identity else ()
    return GROUP, OWN + who, PEER + who


def observe(state: State, rounds: int, *, identity: bool = False, evidence: bool = True) -> Observation:
    """Return the features of a state.

    Args:
        state: B debates.
        rounds: T, for the feature t / T.
        identity: Append a one-hot of the agent to its own and of the peer to the peers' features (fixed teams only).
        evidence: False sets the group features to 0 (the ablation without group evidence).
    """
    batch, agents = state.answers.shape
    counts = np.stack([option_counts(answers, state.options) for answers in state.history[-2:]])
    shares = option_shares(counts)
    now, before = shares[-1], shares[0]
    moved = state.history[-1] != state.history[-2] if state.t else np.zeros((batch, agents), dtype=bool)
    index = np.maximum(state.answers, 0)
    given = state.answers >= 0

    def at_own(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(given, np.take_along_axis(values, index, axis=1), 0.0)

    scale = 1.0 / max(state.t, 1)
    stability = (state.t - stable_since(state) + 1) / (state.t + 1)
    share, leads, flips = at_own(now), given & (state.answers == majority(state)[:, None]), state.flips * scale
    own = [share, leads, flips, moved, at_own(now - before), stability]
    whole = (np.full((batch, agents), state.t / max(rounds, 1)), np.broadcast_to(state.active[:, None], index.shape))
    mine = np.stack([*own, *whole], axis=-1).astype(np.float32)
    same = (state.answers[:, :, None] == state.answers[:, None, :]) & given[:, :, None]
    close = np.zeros(same.shape) if state.similarity is None else state.similarity
    seen = [np.broadcast_to(each[:, None, :], same.shape) for each in (share, flips, leads, stability)]
    peers = np.stack([same, seen[0], seen[1], close, seen[2], seen[3]], axis=-1).astype(np.float32)
    if identity:
        who = np.eye(agents, dtype=np.float32)
        mine = np.concatenate([mine, np.broadcast_to(who, (batch, agents, agents))], axis=-1)
        peers = np.concatenate([peers, np.broadcast_to(who, (batch, agents, agents, agents))], axis=-1)
    peers[:, np.arange(agents), np.arange(agents)] = 0.0
    group = _group_features(state, now, before, moved) if evidence else np.zeros((batch, len(GROUP)), np.float32)
    return Observation(group, mine, peers)


def _group_features(
    state: State, now: NDArray[np.float64], before: NDArray[np.float64], moved: NDArray[np.bool_]
) -> Features:
    ordered = np.sort(now, axis=-1)
    evidence = _evidence(state)
    opinion = dirichlet_opinion(evidence)
    second = ordered[:, -2] if state.options > 1 else 0.0
    columns = (
        ordered[:, -1],
        divergence(now),
        ordered[:, -1] - second,
        (now > 0).sum(axis=-1) / state.options,
        moved.mean(axis=1),
        opinion.belief.max(axis=-1),
        opinion.vacuity,
        dissonance(np.sort(opinion.belief, axis=-1)),  # sorted: equal to the last digit under any naming of the options
        (now - before).max(axis=-1),
    )
    return np.stack(columns, axis=-1).astype(np.float32)


def _evidence(state: State) -> Ints:
    evidence: Ints = np.sum([option_counts(answers, state.options) for answers in state.history], axis=0)
    return evidence
