"""G2PO's advantage: rollouts of one task merged into a graph of states, and credit read off its nodes and edges.

Equations and hyperparameters are second hand (a transcription of the paper) and from the authors' code; where the two
differ, the argument that chooses says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.advantages import (
    GAMMA,
    EpisodeStats,
    accumulated,
    check_batch,
    check_choice,
    check_number,
    episode_advantage,
)
from steelyard.policy.anchors import oddities
from steelyard.policy.groups import Floats, Ints, Norm, group_moments, plain, standardise
from steelyard.policy.steps import StepBatch

PARTS = ("ep", "nc", "ec")
"""Terms of the advantage: of the episode, against other actions from the same node, and along the edge."""
INVALID_PENALTY = 0.1
Weighting = Literal["visits", "trajectories"]
TerminalValue = Callable[[Floats], Floats] | Floats | Sequence[float] | None


class G2POInfo(NamedTuple):
    """What lies behind the advantages; arrays of shape (S,) are in the order of the steps.

    Attributes:
        advantage: What :func:`g2po_advantage` returns, (S,).
        node: Node of each step, numbered over all tasks, (S,).
        next_node: Node of the step after it; -1 after the last of a rollout, (S,).
        value: Value of each node, (K,).
        size: Visits of each node, (K,).
        trajectories: Different rollouts that visited each node, (K,).
        next_value: Value of what each step led to, (S,).
        delta: Rise in value across each step's edge, (S,).
        ep: The three terms, without their weight, (S,); 0 where a part is left out.
        nc: See ``ep``.
        ec: See ``ep``.
        singleton_fraction: Share of steps whose node was visited once.
        warnings: What is odd about the graph, a sentence each.
    """

    advantage: Any
    node: Ints
    next_node: Ints
    value: Floats
    size: Ints
    trajectories: Ints
    next_value: Floats
    delta: Floats
    ep: Floats
    nc: Floats
    ec: Floats
    singleton_fraction: float
    warnings: tuple[str, ...]


def g2po_advantage(
    batch: StepBatch,
    *,
    gamma: float = GAMMA,
    w: float = 1.0,
    norm: Norm = "std",
    episode_stats: EpisodeStats = "trajectory",
    parts: Sequence[str] = PARTS,
    lam: float = 0.0,
    terminal_value: TerminalValue = None,
    invalid_penalty: float = INVALID_PENALTY,
    min_std: float = 0.0,
    weighting: Weighting = "visits",
    bootstrap: bool = False,
    return_info: bool = False,
) -> Any:
    """Return the advantage of every step: ``A = A_ep + w (A_nc + A_ec)``.

    All steps of a task that have the same anchor are one node, whose value is the mean of ``gamma^(T - j + 1) R`` over
    its visits. ``A_nc`` compares the values that the actions from one node led to; ``A_ec`` is the rise in value across
    a step's edge, in standard deviations over all steps of the task; ``A_ep`` is GRPO's. With ``w=0`` the result is
    that of :func:`steelyard.policy.grpo`, bit for bit.

    Args:
        batch: The steps, with anchors. The return of a rollout is the sum of its rewards.
        gamma: Discount a step, in (0, 1].
        w: Weight of the two graph terms, at least 0 (second hand: 1; .8 was best on WebShop).
        norm: ``"std"`` (second hand) or ``"mean"``, which does not divide (the authors' code for WebShop).
        episode_stats: ``"trajectory"`` (second hand) or ``"step"``: long rollouts weigh more and an invalid step's
            return is lower by ``invalid_penalty`` (the authors' code).
        parts: Terms that are summed, of ``"ep"``, ``"nc"``, ``"ec"``.
        lam: In [0, 1]: ``A_ec`` from ``delta_t + lam * A_{t+1}`` (reconstruction; 0 is the paper).
        terminal_value: Value after a rollout's last step: a function from returns (N,) to values (N,), or one value a
            step, read at last steps. None: the return where ``success`` is set, else 0; the return, without it.
        invalid_penalty: Taken off the value that an invalid action led to, in ``A_nc`` (the authors' code).
        min_std: Standard deviations below it count as it.
        weighting: Whether a node's value is the mean over visits (second hand), or over rollouts, each with the mean of
            its own visits (reconstruction).
        bootstrap: Whether a rollout that was truncated ends with its last node's value rather than as a failure.
        return_info: Return :class:`G2POInfo` instead of the advantages.

    Returns:
        Shape (S,), an array or a tensor as the rewards were; or the info.

    Raises:
        InputError: The steps have no anchors, or an argument is out of its range.
    """
    check_batch(batch)
    chosen = _checked_parts(parts)
    _check(gamma=gamma, w=w, lam=lam, invalid_penalty=invalid_penalty, min_std=min_std)
    check_choice("weighting", weighting, ("visits", "trajectories"))
    check_choice("norm", norm, ("std", "mean"))
    layout, (nodes, count) = batch.layout, batch.nodes
    penalty = None if batch.valid is None else np.where(batch.valid[layout.order], 0.0, invalid_penalty)
    value = node_values(batch, gamma=gamma, weighting=weighting)
    next_value, delta = _next_values(batch, value, terminal_value, bootstrap)
    ep = nc = ec = np.zeros(len(batch))
    if "ep" in chosen:
        ep = episode_advantage(batch, norm=norm, episode_stats=episode_stats, penalty=penalty, min_std=min_std)
    if w and "nc" in chosen:
        led_to = next_value if penalty is None else next_value - penalty
        nc = standardise(led_to, nodes, count, norm=norm, min_std=min_std)
    if w and "ec" in chosen:
        ec = standardise(accumulated(batch, delta, lam), layout.task, layout.tasks, norm=norm, min_std=min_std)
    size = np.bincount(nodes, minlength=count)
    said = oddities(batch)
    for sentence in said:
        warnings.warn(sentence, stacklevel=2)
    advantage = batch.per_row(_total({"ep": ep, "nc": nc, "ec": ec}, chosen, w))
    if not return_info:
        return advantage
    return _info(batch, advantage, (value, size), (next_value, delta, ep, nc, ec), said)


def _total(terms: dict[str, Floats], chosen: set[str], w: float) -> Floats:
    """Return the weighted sum; a term of weight 0 is left out, not multiplied, so that GRPO stays bit for bit."""
    graph = [terms[name] for name in ("nc", "ec") if w and name in chosen]
    if not graph:
        return terms["ep"]
    total = graph[0] if len(graph) == 1 else graph[0] + graph[1]
    total = total if w == 1 else w * total
    return terms["ep"] + total if "ep" in chosen else total


def _check(*, gamma: float, w: float, lam: float, invalid_penalty: float, min_std: float) -> None:
    for name, number in (("w", w), ("invalid_penalty", invalid_penalty), ("min_std", min_std)):
        check_number(name, number, low=0.0)
    check_number("gamma", gamma, low=0.0, high=1.0, above=True)
    check_number("lam", lam, low=0.0, high=1.0)


def node_values(batch: StepBatch, *, gamma: float = GAMMA, weighting: Weighting = "visits") -> Floats:
    """Return the value of each node: the mean of ``gamma^(T - j + 1) R`` over its visits, shape (K,).

    ``weighting="trajectories"`` first takes each rollout's mean over its own visits of the node.
    """
    layout = batch.layout
    nodes, count = batch.nodes
    powers = gamma ** np.arange(1.0, layout.lengths.max(initial=0) + 1)
    visits = powers[layout.to_go - 1] * batch.returns[layout.traj]
    if weighting == "visits":
        return group_moments(visits, nodes, count).mean  # exact where all visits are worth the same
    pairs, firsts, inverse = _pairs(batch)
    own = np.bincount(inverse, visits, len(pairs)) / np.bincount(inverse, minlength=len(pairs))
    of = nodes[firsts]
    return np.bincount(of, own, count) / np.maximum(np.bincount(of, minlength=count), 1)


def _pairs(batch: StepBatch) -> tuple[Ints, Ints, Ints]:
    """Return the different (rollout, node) pairs of sorted rows, a row of each, and the pair of each row."""
    nodes, count = batch.nodes
    found = np.unique(batch.layout.traj * max(count, 1) + nodes, return_index=True, return_inverse=True)
    return found[0], found[1], found[2]


def _next_values(batch: StepBatch, value: Floats, terminal: TerminalValue, bootstrap: bool) -> tuple[Floats, Floats]:
    """Return the value of what each sorted row led to, and its rise over the row's own node, (S,) each."""
    layout = batch.layout
    own = value[batch.nodes[0]] if len(batch) else np.zeros(0)
    led_to = np.append(own[1:], 0.0)[: len(own)]
    last = _terminal_values(batch, terminal)
    if bootstrap and batch.truncated is not None:
        cut = batch.truncated[layout.order][layout.ends]
        last = np.where(cut, own[layout.ends], last)
    led_to[layout.ends] = last
    return led_to, led_to - own


def _terminal_values(batch: StepBatch, terminal: TerminalValue) -> Floats:
    returns, succeeded = batch.returns, batch.succeeded
    if terminal is None:
        return returns if succeeded is None else np.where(succeeded, returns, 0.0)
    if callable(terminal):
        values = _reals(terminal(returns.copy()))
        if values.shape != returns.shape:
            raise InputError(f"terminal_value: it must return one value a rollout, {returns.shape}, got {values.shape}")
    else:
        given = _reals(terminal)
        if given.shape != (len(batch),):
            raise InputError(f"terminal_value: it must hold one value a step, ({len(batch)},), got {given.shape}")
        values = given[batch.layout.order][batch.layout.ends]
    if not np.isfinite(values).all():
        raise InputError("terminal_value: every value must be finite")
    return values


def _reals(values: Any) -> Floats:
    try:
        return np.asarray(plain(values), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("terminal_value: it must be numbers, or a function that returns numbers") from None


def _checked_parts(parts: Sequence[str]) -> set[str]:
    chosen = [parts] if isinstance(parts, str) or not isinstance(parts, Iterable) else list(parts)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown or not chosen:
        raise InputError(f"parts must name some of {', '.join(PARTS)}, got {unknown or 'none'}")
    return set(chosen)


def _info(
    batch: StepBatch,
    advantage: Any,
    of_nodes: tuple[Floats, Ints],
    of_steps: tuple[Floats, Floats, Floats, Floats, Floats],
    said: tuple[str, ...],
) -> G2POInfo:
    layout = batch.layout
    nodes, count = batch.nodes
    following = np.append(nodes[1:], -1)[: len(nodes)]
    following[layout.ends] = -1
    value, size = of_nodes
    next_value, delta, ep, nc, ec = (array[layout.place] for array in of_steps)
    return G2POInfo(
        advantage=advantage,
        node=nodes[layout.place],
        next_node=following[layout.place],
        value=value,
        size=size,
        trajectories=np.bincount(nodes[_pairs(batch)[1]], minlength=count),
        next_value=next_value,
        delta=delta,
        ep=ep,
        nc=nc,
        ec=ec,
        singleton_fraction=float((size == 1).sum()) / max(len(batch), 1),
        warnings=said,
    )
