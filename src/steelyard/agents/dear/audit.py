"""Does the truth leak into what a controller observes? An audit of back ends, environments and controllers.

A first trial of this method stored the truth as option 0 and took ``argmax`` of the votes: ties went to the truth, the
label was in the observation, and the gain looked real. Hence this audit. Its checks are of two kinds. Exact ones: with
another option declared right, or with options renamed, everything observed and done must stay as it is. Statistical
ones, for what a back end stores: place and tie order of the right option must be uniform, tied answers must not favour
it, nor may the drawn order of agents; and among answers with equally many votes no feature may tell right from wrong
without error. That a feature goes along with correctness is no leak: the votes do, and so does a stated confidence.
Hence a noisy label inside a field that may be informative, or agents stored best first, is beyond it. Reconstruction.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from steelyard.agents.dear.episodes import (
    KEEP,
    Backend,
    Bools,
    Episodes,
    Floats,
    Ints,
    State,
    majority,
    option_counts,
    random_order,
    relabel_options,
)
from steelyard.agents.dear.observation import feature_names, observe
from steelyard.agents.dear.rollout import Controller
from steelyard.errors import InputError
from steelyard.rng import generator

Observer = Callable[[Episodes], NDArray[Any]]

_ALPHA = 1e-6  # per test: with a few hundred tests a clean back end is flagged once in thousands of seeds
_LEAST = 20  # cases of each kind before anything is said about separation
_ROUNDING = 1e-6  # float32 sums may differ in the last digit when options change places


class LabelLeakError(InputError):
    """The audit found a way for labels to reach a controller."""


@dataclass(frozen=True)
class Leak:
    """One finding: which check, which feature or field, and what was seen."""

    check: str
    feature: str
    detail: str

    def __str__(self) -> str:
        return f"{self.check}: {self.feature}: {self.detail}"


@dataclass
class LeakReport:
    """Result of an audit.

    Attributes:
        leaks: Findings, none of them harmless.
        checks: Names of the checks that ran.
        episodes: Debates looked at.
    """

    episodes: int
    leaks: list[Leak] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if nothing was found."""
        return not self.leaks

    @property
    def features(self) -> tuple[str, ...]:
        """The features and fields at fault, sorted."""
        return tuple(sorted({leak.feature for leak in self.leaks}))

    def raise_for_leaks(self) -> None:
        """Raise LabelLeakError if there is any finding."""
        if self.leaks:
            more = f" (and {len(self.leaks) - 1} more)" if len(self.leaks) > 1 else ""
            raise LabelLeakError(f"labels leak: {self.leaks[0]}{more}")


def audit_label_leak(
    target: Any,
    *,
    controller: Controller | None = None,
    observer: Observer | None = None,
    episodes: int = 2000,
    rounds: int = 3,
    seed: int = 0,
    on_leak: Literal["raise", "report"] = "raise",
) -> LeakReport:
    """Check that nothing a controller observes or does depends on labels other than through the agents' answers.

    Args:
        target: A back end, or an environment with ``backend``, ``features(episodes)``, ``reset`` and ``step`` such as
            `DebateEnv`. Of an environment, what `reset` and `step` really return is audited as well.
        controller: Also check its decisions under renamed options and another declared truth.
        observer: What is observed of a batch of `Episodes`, (B, ...); default: the environment's features, else
            `observe`.
        episodes: Debates to look at; about 2000 are needed to see small biases.
        rounds: Rounds of random actions to play.
        seed: Of the audit's own draws.
        on_leak: "raise" LabelLeakError at a finding, or only "report" it.

    Raises:
        LabelLeakError: There is a leak and ``on_leak="raise"``.
        InputError: Something else than a back end or an environment; too few episodes; an environment that plays on
            something else than its ``backend``, as a wrapper does.
    """
    if on_leak not in ("raise", "report"):
        raise InputError(f"on_leak must be 'raise' or 'report', not {on_leak!r}.")
    if episodes < 100 or rounds < 0:
        raise InputError(f"episodes = {episodes} must be at least 100, and rounds = {rounds} at least 0.")
    backend = getattr(target, "backend", target)
    if not (hasattr(backend, "start") and hasattr(backend, "advance")):
        raise InputError("target must be a debate back end or an environment that has one.")
    look, names = _observer(target, observer, rounds, backend.n_agents)
    report = LeakReport(episodes)
    states = _play(backend, episodes, rounds, generator("leak audit", "states", seed), report)
    _audit_storage(states[0], report)
    for state in states:
        draws = generator("leak audit", "relabel", seed)
        _audit_observation(state, look, names, draws, report)
        if controller is not None:
            _audit_controller(state, controller, rounds, draws, seed, report)
    if backend is not target:
        _audit_environment(target, backend, seed, report)
    if on_leak == "raise":
        report.raise_for_leaks()
    return report


def _observer(target: Any, observer: Observer | None, rounds: int, agents: int) -> tuple[Observer, Sequence[str]]:
    if observer is not None:
        return observer, ()
    if hasattr(target, "features"):
        return target.features, getattr(target, "feature_names", ())
    group, own, peer = feature_names(agents)

    def flat(episodes: Episodes) -> NDArray[Any]:
        seen = observe(episodes.public(), max(rounds, 1))
        return np.concatenate([each.reshape(episodes.batch, -1) for each in seen], axis=1)

    whose = [f"{name} of agent {i}" for i in range(agents) for name in own]
    pairs = [f"{name} of agent {j} for agent {i}" for i in range(agents) for j in range(agents) for name in peer]
    return flat, (*group, *whose, *pairs)


def _play(backend: Backend, count: int, rounds: int, rng: np.random.Generator, report: LeakReport) -> list[Episodes]:
    """Play random actions; on the way check that a step neither uses the truth nor the names of the options."""
    state = backend.start(count, rng)
    states, agents = [state], backend.n_agents
    report.checks += ["step ignores the truth", "step is equivariant"] if rounds and agents > 1 else []
    for _ in range(rounds if agents > 1 else 0):
        reads = rng.random((count, agents, agents)) < 0.5
        reads[:, np.arange(agents), np.arange(agents)] = False
        behaviours = rng.integers(1, 4, size=(count, agents))
        behaviours[rng.random((count, agents)) < 0.2] = KEEP
        noise = rng.gumbel(size=(count, agents, backend.n_options))
        after = backend.advance(state, reads, behaviours, noise)
        other = backend.advance(_declare_other(state, rng), reads, behaviours, noise)
        for name in _changed(after.public(), other.public()):
            report.leaks.append(Leak("step ignores the truth", name, "changes with the declared truth"))
        names = random_order(count, backend.n_options, rng)
        moved = np.take_along_axis(noise, np.broadcast_to(names.argsort(1)[:, None], noise.shape), axis=2)
        renamed = backend.advance(relabel_options(state, names), reads, behaviours, moved)
        if _differ(renamed.answers, relabel_options(after, names).answers).any():
            report.leaks.append(Leak("step is equivariant", "answers", "they change when options are renamed"))
        state = after
        states.append(state)
    return states


def _changed(one: State, other: State) -> list[str]:
    """Return the names of the fields in which two states differ."""
    return [each.name for each in fields(State) if not _same(getattr(one, each.name), getattr(other, each.name))]


def _same(left: Any, right: Any) -> bool:
    """Return whether two values are equal, whatever of mappings, sequences and arrays they are made of."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    first, second = np.asarray(left), np.asarray(right)
    return first.shape == second.shape and not _differ(first, second).any()


def _declare_other(state: Episodes, rng: np.random.Generator) -> Episodes:
    """Return the same debates with another option called right."""
    return replace(state, truth=(state.truth + rng.integers(1, state.options, state.batch)) % state.options)


def _differ(left: NDArray[Any], right: NDArray[Any]) -> Bools:
    return np.asarray(~((left == right) | ((left != left) & (right != right))))


def _audit_storage(start: Episodes, report: LeakReport) -> None:
    """Place and tie order of the truth, tied first answers, and tied majorities, over all debates."""
    rank = np.take_along_axis(start.tie, start.truth[:, None], axis=1)[:, 0]
    for check, values in (("place of the truth", start.truth), ("tie order of the truth", rank)):
        report.checks.append(check)
        counts = np.bincount(values, minlength=start.options)
        p = float(stats.chisquare(counts).pvalue)
        if p < _ALPHA:
            where = "truth" if check.startswith("place") else "tie"
            report.leaks.append(Leak(check, where, f"not uniform over {start.options} options (p = {p:.1e})"))
    counts = option_counts(start.answers, start.options)
    _audit_ties("ties of the majority", "majority", counts[:, None], majority(start)[:, None], start, report)
    if start.private is not None and start.private.ndim == 3:
        _audit_ties("ties of the first answers", "answers", start.private, start.answers, start, report)
    _audit_agent_order(start, report)


def _audit_agent_order(start: Episodes, report: LeakReport) -> None:
    """The order of agents is drawn: the places of those that are right sum up as those of as many drawn ones."""
    report.checks.append("order of the agents")
    right = start.answers == start.truth[:, None]
    agents, count = start.n_agents, right.sum(axis=1)
    apart = (start.agent_tie * right).sum() - (count * (agents - 1) / 2).sum()
    variance = (count * (agents - count) * (agents + 1) / 12).sum()
    if variance and 2 * stats.norm.sf(abs(apart) / np.sqrt(variance)) < _ALPHA:
        detail = f"agents that are right stand {apart / np.sqrt(variance):+.1f} standard errors off a drawn place"
        report.leaks.append(Leak("order of the agents", "agent_tie", detail))


def _audit_ties(check: str, name: str, values: NDArray[Any], chosen: Ints, start: Episodes, report: LeakReport) -> None:
    """Among ties that the truth is part of, it must win 1/n of those with n tied options."""
    report.checks.append(check)
    top = values == values.max(axis=2, keepdims=True)
    truth = np.broadcast_to(start.truth[:, None], chosen.shape)
    size = top.sum(axis=2)
    tied = (size > 1) & np.take_along_axis(top, truth[..., None], axis=2)[..., 0]
    share = 1.0 / size[tied]
    if tied.sum() < _LEAST:
        return
    z = ((chosen == truth)[tied].sum() - share.sum()) / np.sqrt((share * (1 - share)).sum())
    if 2 * stats.norm.sf(abs(z)) < _ALPHA:
        report.leaks.append(Leak(check, name, f"the truth wins {z:+.1f} standard errors off its share of ties"))


def _audit_observation(
    state: Episodes, look: Observer, names: Sequence[str], rng: np.random.Generator, report: LeakReport
) -> None:
    """The four checks of what is observed of one round's debates."""
    seen = _flat(look(state))
    for check, changed in (
        ("observation ignores the truth", _declare_other(state, rng)),
        ("observation is equivariant", relabel_options(state, random_order(state.batch, state.options, rng))),
    ):
        _note(report, check)
        other = _flat(look(changed))
        gap = np.abs(seen - other) > _ROUNDING * np.maximum(1.0, np.abs(seen))
        for column in np.flatnonzero(gap.any(axis=0)):
            detail = f"changes in {gap[:, column].mean():.1%} of the debates, round {state.t}"
            report.leaks.append(Leak(check, _name(names, int(column)), detail))
    _note(report, "features know nothing of the truth's place")
    _note(report, "no feature gives correctness away")
    fields = {f"{key} of agent {i}": value[:, i] for key, value in _public(state) for i in range(state.n_agents)}
    told = [_name(names, column) for column in range(seen.shape[1])] + list(fields)
    columns = np.column_stack([seen, *fields.values()])
    varied = columns.min(axis=0) < columns.max(axis=0)
    told = [name for name, keep in zip(told, varied, strict=True) if keep]
    if told:
        _audit_place(columns[:, varied], told, state, report)
        _audit_separation(columns[:, varied], told, state, report)


def _public(state: Episodes) -> Iterator[tuple[str, Floats]]:
    """Yield what else a controller gets: by agent (B, N), and where the debate stands in the batch (B, N)."""
    for key in ("confidence", "flips", "cost", "calls", "tokens", "agent_tie"):
        value = getattr(state, key)
        if value is not None:
            yield key, value
    if state.similarity is not None:
        alike = (state.answers[:, :, None] == state.answers[:, None, :]) & ~np.eye(state.n_agents, dtype=bool)
        yield "similarity to those alike", (state.similarity * alike).sum(axis=2) / np.maximum(alike.sum(axis=2), 1)
    yield "place in the batch", np.repeat(np.arange(state.batch, dtype=float)[:, None], state.n_agents, axis=1)


def _audit_place(columns: Floats, names: Sequence[str], state: Episodes, report: LeakReport) -> None:
    """Is a feature distributed differently by which option is right? Analysis of variance of its ranks."""
    ranks = stats.rankdata(columns, axis=0)
    groups = [ranks[state.truth == k] for k in range(state.options)]
    if min(map(len, groups)) < _LEAST:
        return
    p = np.asarray(stats.f_oneway(*groups, axis=0).pvalue)
    for column in np.flatnonzero(p < _ALPHA):
        detail = f"its distribution depends on which option is right (p = {p[column]:.1e}), round {state.t}"
        report.leaks.append(Leak("features know nothing of the truth's place", names[int(column)], detail))


def _audit_separation(columns: Floats, names: Sequence[str], state: Episodes, report: LeakReport) -> None:
    """Does a threshold or a code of few values tell right from wrong among answers with equally many votes?

    Only with enough different items of each kind: a small recording may separate by chance.
    """
    right = state.answers == state.truth[:, None]
    votes = (state.answers[:, :, None] == state.answers[:, None, :]).sum(axis=2)
    for agent in range(state.n_agents):
        for count in range(1, state.n_agents + 1):
            among = votes[:, agent] == count
            kinds = [among & right[:, agent], among & ~right[:, agent]]
            if min(len(np.unique(state.items[kind])) for kind in kinds) < _LEAST:
                continue
            good, bad = (columns[kind] for kind in kinds)
            apart = (good.min(axis=0) > bad.max(axis=0)) | (good.max(axis=0) < bad.min(axis=0)) | _coded(good, bad)
            for column in np.flatnonzero(apart):
                detail = f"it tells agent {agent}'s right answers from wrong ones, {count} vote(s), round {state.t}"
                report.leaks.append(Leak("no feature gives correctness away", names[int(column)], detail))


def _coded(good: Floats, bad: Floats) -> Bools:
    """Return for each column whether it has few values and none of them in both kinds, as a digit that tells would."""
    few = (len(good) + len(bad)) / _LEAST  # so many that values come again
    sets = [(set(one.tolist()), set(other.tolist())) for one, other in zip(good.T, bad.T, strict=True)]
    return np.array([one.isdisjoint(other) and len(one) + len(other) <= few for one, other in sets], dtype=bool)


def _audit_controller(
    state: Episodes, controller: Controller, rounds: int, rng: np.random.Generator, seed: int, report: LeakReport
) -> None:
    """Decisions must stay the same when another option is declared right, and when options are renamed."""

    def decide(episodes: Episodes) -> tuple[Bools, Ints]:
        seen = observe(episodes.public(), max(rounds, 1), identity=controller.identity, evidence=controller.evidence)
        view = episodes if controller.uses_labels else episodes.public()
        return controller.decide(seen, view, generator("leak audit", "decisions", seed))

    plain = decide(state)
    for check, changed in (
        ("controller ignores the truth", _declare_other(state, rng)),
        ("controller is equivariant", relabel_options(state, random_order(state.batch, state.options, rng))),
    ):
        _note(report, check)
        for name, left, right in zip(("reads", "behaviours"), plain, decide(changed), strict=True):
            share = _differ(np.asarray(left), np.asarray(right)).mean()
            if share > 0:
                report.leaks.append(Leak(check, name, f"{share:.1%} of them change, round {state.t}"))


class _Declared:
    """A back end that plays on as before but declares another option right."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self._backend = backend
        self._random = generator("leak audit", "declared", seed)
        self.started = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def start(self, batch: int, rng: np.random.Generator, *, items: Sequence[int] | None = None) -> Episodes:
        self.started += 1
        return _declare_other(self._backend.start(batch, rng, items=items), self._random)


def _audit_environment(env: Any, backend: Backend, seed: int, report: LeakReport) -> None:
    """Play the environment twice, the second time with other options declared right: equal observations but rewards."""
    check = "environment's observations ignore the truth"
    _note(report, check)
    twin, other = copy.copy(env), copy.copy(env)
    other.backend = declared = _Declared(backend, seed)
    names = getattr(env, "feature_names", ())
    found: set[str] = set()
    for episode in range(100):
        told, also = _told(twin, *twin.reset(seed=seed + episode)), _told(other, *other.reset(seed=seed + episode))
        if declared.started <= episode:  # it plays on something else, with the same truth both times
            raise InputError("target's reset does not call backend.start; give the environment inside its wrappers.")
        rng = generator("leak audit", "actions", seed + episode)
        while True:
            for agent, seen in told.pop("observations").items():
                gap = _differ(np.asarray(seen).reshape(-1), np.asarray(also["observations"][agent]).reshape(-1))
                found |= {_name(names, int(column)) for column in np.flatnonzero(gap)}
            found |= {key for key, value in told.items() if not _same(value, also[key])}
            if not twin.agents or not other.agents:
                break
            actions = {agent: rng.integers(twin.action_space(agent).nvec) for agent in twin.agents}
            told, also = _told(twin, *twin.step(actions)), _told(other, *other.step(actions))
    report.leaks += [Leak(check, name, "it changes with the declared truth") for name in sorted(found)]


def _told(env: Any, observations: Mapping[str, Any], *rest: Any) -> dict[str, Any]:
    """Return by name all that an environment tells but rewards: what `reset` (rest: infos) or `step` returned."""
    told = {"observations": observations, "infos": rest[-1], "ends": rest[1:-1], "agents": list(env.agents)}
    return told | ({"state": env.state()} if hasattr(env, "state") else {})


def _flat(seen: NDArray[Any]) -> Floats:
    values = np.asarray(seen, dtype=float)
    return values.reshape(len(values), -1)


def _name(names: Sequence[str], column: int) -> str:
    return f"{names[column % len(names)]}" if names else f"feature {column}"


def _note(report: LeakReport, check: str) -> None:
    if check not in report.checks:
        report.checks.append(check)
