"""How strongly a client shares: prototypes of groups, and each head mixed with its own.

The paper's abstract settles the idea; the leave-one-out prototype, the plug-in strength and the smoothing are a
reconstruction. Two passes over the heads suffice: one for the distances, one for the mixed heads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError, NoEffectWarning
from steelyard.fed.gadaphead.core import second_moment, shares, squared_norm
from steelyard.fed.gadaphead.grouping import GroupAssignment, members_of
from steelyard.fed.gadaphead.rows import Row, as_row, combine, distances, is_finite

Mode = Literal["plugin", "debiased", "fixed", "oracle"]
Estimate = Literal["plugin", "debiased"]
Variance = Literal["refit", "split", "iterates"]
Floats = NDArray[np.float64]

MODES = ("plugin", "debiased", "fixed", "oracle")
ESTIMATES = ("plugin", "debiased")
PROXIES = ("refit", "split", "iterates")


class MixResult(NamedTuple):
    """Mixed heads.

    Attributes:
        heads: Shape and dtype of the heads given, (N, d) or (N, d, k).
        lam: Share of the prototype in each, shape (N,); 0 for a client alone in its group.
        proto: Prototype of each client, shape of ``heads``; the client's own head if it is alone.
        mismatch: Estimate of the squared mismatch of each prototype, max(0, distance^2 - variances), shape (N,); 0 for
            a client alone.
    """

    heads: NDArray[Any]
    lam: Floats
    proto: NDArray[Any]
    mismatch: Floats


class Member(NamedTuple):
    """What mixing needs of one client of a group: its flat head, variance, second moment or None, and weight."""

    row: Row
    variance: float
    sigma: Floats | None
    weight: float = 1.0


class Choice(NamedTuple):
    """For one group of n: means (n, n) that make the prototypes, shares (n,) and squared mismatches (n,)."""

    means: Floats
    lam: Floats
    mismatch: Floats


def head_prototypes(heads: Any, groups: Any, leave_one_out: bool = True, weights: Any = None) -> NDArray[Any]:
    """Return the prototype of each client, the mean head of its group, shape of ``heads``.

    Args:
        heads: Shape (N, d) or (N, d, k); floats keep their precision.
        groups: A :class:`GroupAssignment` or labels, shape (N,).
        leave_one_out: Without the client itself; a client alone gets its own head.
        weights: Weight of each head in the means, shape (N,), above 0; None: equal.

    Raises:
        InputError: Shapes that do not fit, heads that are not finite, or a weight that is not above 0.
    """
    rows, shape = _rows(heads)
    proto = np.empty((len(rows), rows[0].size), dtype=rows[0].dtype)
    weighing = _weights(weights, len(rows))
    for own in members_of(_labels(groups, len(rows))):
        combine(_means(weighing[own], leave_one_out), [rows[i] for i in own], [proto[i] for i in own])
    return proto.reshape(shape)


def mix_heads(
    heads: Any,
    groups: Any,
    variances: Any = None,
    sigma: Any = None,
    mode: Mode = "plugin",
    *,
    strength: Any = None,
    truth: Any = None,
    leave_one_out: bool = True,
    clip: tuple[float, float] = (0.0, 1.0),
    weights: Any = None,
) -> MixResult:
    """Mix each head with the prototype of its group.

    A share of 0 leaves a head and a share of 1 replaces it by the prototype, bit for bit. Heads of a group are computed
    from that group alone. For "plugin" the share is V_i (1 - m) / |w_i - p|^2 with m the client's own weight in its
    prototype, 0 if left out. For "debiased" the squared distance counts as no less than what it would be expected to be
    without any mismatch, V_i + V_g: two equally unsure clients then never do more than meet in the middle, while the
    plain plug-in may let them swap heads.

    Args:
        heads: Shape (N, d) or (N, d, k), as they are after a round that all clients began with one trunk.
        groups: A :class:`GroupAssignment` or labels, shape (N,).
        variances: Estimates of each head's variance, shape (N,), in the norm of ``sigma``; needed to estimate shares.
        sigma: Second moment of the features, one (d, d) for all or one (or None) for each client; None: Euclidean.
        mode: Where the share comes from: "plugin" and "debiased" estimate it, "fixed" takes ``strength``, "oracle" is
            the best one for the ``truth``.
        strength: For "fixed": a number in [0, 1] or one for each client.
        truth: For "oracle": the true heads, shape of ``heads``.
        leave_one_out: Prototype without the client itself.
        clip: Lowest and highest share of a client that is not alone.
        weights: As in :func:`head_prototypes`.

    Raises:
        InputError: Shapes that do not fit, values that are not finite, a negative variance, or a missing argument.
    """
    rows, shape = _rows(heads)
    count = len(rows)
    labels, weighing, variance = _labels(groups, count), _weights(weights, count), _variances(variances, count, mode)
    moments, wanted = _moments(sigma, count, shape[1]), _wanted(mode, strength, truth, shape)
    check_clip(clip)
    lam, mismatch = np.zeros(count), np.zeros(count)
    mixed = np.empty((count, rows[0].size), dtype=rows[0].dtype)
    proto = np.empty_like(mixed)
    for own in members_of(labels):
        group = [Member(rows[i], variance[i], moments[i], weighing[i]) for i in own]
        aim = None if wanted is None else wanted[own]
        means, lam[own], mismatch[own] = choose(group, shape[1], aim, leave_one_out, clip, mode == "debiased")
        combine(means, [rows[i] for i in own], [proto[i] for i in own], lam[own], [mixed[i] for i in own])
    return MixResult(mixed.reshape(shape), lam, proto.reshape(shape), mismatch)


def choose(
    group: Sequence[Member],
    features: int,
    wanted: Floats | None = None,
    leave_one_out: bool = True,
    clip: tuple[float, float] = (0.0, 1.0),
    debiased: bool = False,
) -> Choice:
    """Return how the heads of one group mix.

    Args:
        group: Its clients; rows of one length and dtype.
        features: First dimension d of a head.
        wanted: Shares (n,), or true heads (n, d * k) for which the best shares are taken; None: estimated ones.
        leave_one_out: Prototype without the client itself.
        clip: Lowest and highest share.
        debiased: Estimate with the debiased mismatch; else the plain plug-in.
    """
    weights = np.array([member.weight for member in group])
    means = _means(weights, leave_one_out)
    if len(group) < 2:
        return Choice(means, np.zeros(len(group)), np.zeros(len(group)))
    truth = wanted if wanted is not None and wanted.ndim == 2 else None
    if truth is None and all(member.sigma is None for member in group):
        apart = distances(weights, [member.row for member in group], leave_one_out)
        towards, same = np.zeros(len(group)), apart == 0
    else:
        apart, towards, same = _geometry(group, means, features, truth)
    variance, own = np.array([member.variance for member in group]), np.diag(means)
    with np.errstate(over="ignore"):
        noise = means**2 @ variance + (1.0 - 2.0 * own) * variance
    if wanted is None:
        lam = shares(variance * (1.0 - own), np.maximum(apart, noise) if debiased else apart, same)
    elif wanted.ndim == 1:
        lam = wanted
    else:
        lam = np.divide(towards, apart, out=np.zeros(len(group)), where=apart > 0)
    with np.errstate(invalid="ignore"):  # both infinite: no number, which counts as 0
        return Choice(means, np.clip(lam, *clip), np.fmax(0.0, apart - noise))


def check_clip(clip: tuple[float, float]) -> None:
    """Raise InputError unless ``clip`` is an interval within [0, 1]."""
    if len(clip) != 2 or not 0 <= clip[0] <= clip[1] <= 1:
        raise InputError(f"clip must be (lowest, highest) within [0, 1], got {clip}")


def _geometry(
    group: Sequence[Member], means: Floats, features: int, truth: Floats | None
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return |w - p|^2, <truth - w, p - w> (0 without a truth), and where w and p are identical, each (n,)."""
    rows, count = [member.row for member in group], len(group)
    protos = [np.empty_like(row) for row in rows]
    combine(means, rows, protos)
    apart, towards = np.zeros(count), np.zeros(count)
    for i, (member, proto) in enumerate(zip(group, protos, strict=True)):
        step = (proto.astype(np.float64) - member.row).reshape(features, -1)
        apart[i] = squared_norm(step, member.sigma)
        if truth is not None:
            error = (truth[i] - member.row).reshape(features, -1)
            towards[i] = np.vdot(error, step if member.sigma is None else member.sigma @ step)
    return apart, towards, np.array([np.array_equal(row, proto) for row, proto in zip(rows, protos, strict=True)])


def _means(weights: Floats, leave_one_out: bool) -> Floats:
    """Return the (n, n) matrix whose product with the heads of a group is its prototypes."""
    count = len(weights)
    if count == 1:
        return np.ones((1, 1))
    means = np.tile(weights, (count, 1))
    if leave_one_out:
        np.fill_diagonal(means, 0.0)
    return np.asarray(means / means.sum(axis=1, keepdims=True))


def _rows(heads: Any) -> tuple[list[Row], tuple[int, ...]]:
    shapes = sorted({np.shape(head) for head in heads})
    if len(shapes) != 1 or len(shapes[0]) not in (1, 2) or 0 in shapes[0]:
        raise InputError(f"heads must have one shape, (d,) or (d, k), got {', '.join(map(str, shapes)) or 'none'}")
    rows = [as_row(head, "heads") for head in heads]
    common = np.result_type(*rows)
    rows = [row.astype(common, copy=False) for row in rows]
    for client, row in enumerate(rows):
        if not is_finite(row):
            raise InputError(f"head of client {client} holds values that are not finite; leave the client out")
    return rows, (len(rows), *shapes[0])


def _labels(groups: Any, count: int) -> NDArray[Any]:
    labels = np.asarray(groups.labels if isinstance(groups, GroupAssignment) else groups)
    if labels.shape != (count,):
        raise InputError(f"groups must label each of the {count} heads, got shape {labels.shape}")
    return labels


def _weights(weights: Any, count: int) -> Floats:
    if weights is None:
        return np.ones(count)
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (count,) or not (np.isfinite(array) & (array > 0)).all():
        raise InputError(f"weights must be {count} finite numbers above 0")
    return array


def _variances(variances: Any, count: int, mode: str) -> Floats:
    if mode not in MODES:
        raise InputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if variances is None:
        if mode in ESTIMATES:
            raise InputError(f"variances are needed for mode {mode!r}: give an estimate for each head")
        return np.zeros(count)
    given = np.asarray(variances, dtype=np.float64)
    if given.ndim and given.shape != (count,):
        raise InputError(f"variances must be one number, or one for each of {count} heads, got shape {given.shape}")
    array = np.broadcast_to(given, (count,))
    for client in np.flatnonzero(~(np.isfinite(array) & (array >= 0))):
        raise InputError(f"variance of client {client} must be a finite number of at least 0, got {array[client]}")
    return array


def _moments(sigma: Any, count: int, width: int) -> list[Floats | None]:
    if sigma is None or getattr(sigma, "ndim", None) == 2:
        return [None if sigma is None else second_moment(sigma, width)] * count
    if len(sigma) != count:
        raise InputError(f"sigma must be one (d, d) second moment, or one for each of {count} heads, got {len(sigma)}")
    return [None if moment is None else second_moment(moment, width) for moment in sigma]


def _wanted(mode: str, strength: Any, truth: Any, shape: tuple[int, ...]) -> Floats | None:
    """Return the fixed shares (N,), the true heads (N, d * k), or None where shares are estimated."""
    if mode in ESTIMATES:
        return None
    if mode == "fixed":
        if strength is None:
            raise InputError("strength is needed for mode 'fixed': a number in [0, 1]")
        given = np.broadcast_to(np.asarray(strength, dtype=np.float64), shape[:1])
        if not ((given >= 0) & (given <= 1)).all():
            raise InputError(f"strength must lie in [0, 1], got {strength}")
        return given
    if truth is None or np.shape(truth) != shape:
        raise InputError(f"truth is needed for mode 'oracle': the true heads, shape {shape}")
    true = np.asarray(truth, dtype=np.float64).reshape(shape[0], -1)
    if not is_finite(true.reshape(-1)):
        raise InputError("truth must be finite numbers")
    return true


class AdaptiveMix:
    """Mixing over rounds: smoothed variances, a warm-up, and less weight for heads seen long ago.

    Args:
        variance: The proxy that clients compute, which they read here: "refit", "split" or "iterates".
        clip: Lowest and highest share of a client that is not alone.
        warmup: Rounds 1..warmup without mixing.
        ema: Weight in [0, 1) of the past in the smoothed variance of a client.
        sigma: Measure distances in values where clients send the second moment of their features.
        staleness: Factor in (0, 1] by which a head's weight in prototypes falls with each round of absence.
        leave_one_out: Prototype without the client itself.
        strength: A fixed share in [0, 1] for all; None: estimated.
        estimate: How: "debiased" or "plugin", see :func:`mix_heads`.

    Raises:
        InputError: A setting outside its range.
    """

    def __init__(
        self,
        variance: Variance = "refit",
        clip: tuple[float, float] = (0.0, 1.0),
        warmup: int = 2,
        ema: float = 0.9,
        sigma: bool = True,
        staleness: float = 0.9,
        leave_one_out: bool = True,
        strength: float | None = None,
        estimate: Estimate = "debiased",
    ) -> None:
        check_clip(clip)
        if estimate not in ESTIMATES:
            raise InputError(f"estimate must be one of {', '.join(ESTIMATES)}, got {estimate!r}")
        if variance not in PROXIES:
            raise InputError(f"variance must be one of {', '.join(PROXIES)}, got {variance!r}")
        if warmup < 0:
            raise InputError(f"warmup must be at least 0 rounds, got {warmup}")
        if not 0 <= ema < 1:
            raise InputError(f"ema must lie in [0, 1), got {ema}")
        if not 0 < staleness <= 1:
            raise InputError(f"staleness must lie in (0, 1], got {staleness}")
        if strength is not None and not 0 <= strength <= 1:
            raise InputError(f"strength must lie in [0, 1], got {strength}")
        if variance == "iterates":
            warnings.warn(
                "variance='iterates' measures steps of the optimiser: with Adam hardly anything will be shared",
                NoEffectWarning,
                stacklevel=2,
            )
        self.variance, self.clip, self.warmup, self.ema = variance, clip, warmup, ema
        self.sigma, self.staleness = sigma, staleness
        self.leave_one_out, self.strength, self.estimate = leave_one_out, strength, estimate
        self._smoothed: dict[int, float] = {}

    def smooth(self, variances: Mapping[int, float]) -> None:
        """Take this round's variance estimates, by client."""
        for client, value in variances.items():
            past = self._smoothed.get(client)
            self._smoothed[client] = value if past is None else self.ema * past + (1 - self.ema) * value

    def mix(
        self,
        round: int,
        heads: Mapping[int, NDArray[Any]],
        groups: Mapping[int, int],
        moments: Mapping[int, Floats | None],
        ages: Mapping[int, int],
    ) -> tuple[dict[int, NDArray[Any]], dict[int, float], dict[int, float]]:
        """Return mixed heads, shares and mismatches of all clients in ``heads``.

        Args:
            round: Number of the round, from 1.
            heads: Last seen head of each client; clients of one group have heads of one shape.
            groups: Group of each client.
            moments: Second moment of each client's features, as ``core.second_moment`` gives it, or None.
            ages: Rounds since each head was seen, 0 for those of this round.
        """
        clients = sorted(heads)
        mixed, lam, mismatch = {}, {}, {}
        for rows in members_of(groups[client] for client in clients):
            own = [clients[i] for i in rows]
            flat = [as_row(heads[client], "heads") for client in own]
            common = np.result_type(*flat)
            group = [
                Member(
                    row.astype(common, copy=False),
                    self._smoothed[client],
                    moments[client] if self.sigma else None,
                    max(self.staleness ** ages[client], 1e-100),
                )
                for client, row in zip(own, flat, strict=True)
            ]
            fixed = None if self.strength is None else np.full(len(own), self.strength)
            debiased = self.estimate == "debiased"
            choice = choose(group, len(heads[own[0]]), fixed, self.leave_one_out, self.clip, debiased)
            share = choice.lam if round > self.warmup else np.zeros(len(own))
            outs = np.empty((len(group), group[0].row.size), dtype=common)
            combine(choice.means, [member.row for member in group], None, share, cast(Sequence[Row], outs))
            for client, out, one, miss in zip(own, outs, share, choice.mismatch, strict=True):
                mixed[client] = out.reshape(heads[client].shape).astype(heads[client].dtype, copy=False)
                lam[client], mismatch[client] = float(one), float(miss)
        return mixed, lam, mismatch

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the smoothed variances as arrays."""
        clients = sorted(self._smoothed)
        return {
            "clients": np.array(clients, dtype=np.int64),
            "variances": np.array([self._smoothed[client] for client in clients]),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            InputError: The state lacks a part, or a variance is none.
        """
        try:
            pairs = zip(state["clients"].tolist(), state["variances"].tolist(), strict=True)
            smoothed = {int(client): float(value) for client, value in pairs}
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(f"state of the mixing cannot be read: {error}") from None
        if not all(0 <= value < np.inf for value in smoothed.values()):
            raise InputError("state of the mixing cannot be read: a variance is negative or not finite")
        self._smoothed = smoothed
