"""An environment that holds an agent to what it states and predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from steelyard.errors import InputError
from steelyard.policy.advantages import check_number
from steelyard.policy.arc.format import CommitmentFormat
from steelyard.policy.arc.verifiers import Evidence, Verifier
from steelyard.policy.environment import TextEnv

SIGNALS = ("progress", "prediction")
FORMAT_PENALTY = 0.05


class Tracker(Protocol):
    """Knows what can be known from commands and their answers."""

    def observe(self, command: str, observation: str) -> None:
        """Take in a command and what it was answered."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Return what progress statements are checked against."""
        ...

    def seen(self, observation: str) -> Mapping[str, str]:
        """Return what predictions of ``observation`` are checked against."""
        ...


class CommitmentWrapper:
    """An environment whose turns are texts with a progress statement, a command and a prediction.

    A progress statement is scored against what was observed up to then, a prediction against the next observation
    alone. ``info["process"]`` has both scores (and "progress.KEY" for each key that a rule checks), NaN where
    a claim cannot be checked; ``info["commitment"]`` has the parsed turn.

    Args:
        env: Any text environment.
        verifiers: ``{"progress": ..., "prediction": ...}``; one that is left out scores nothing.
        tracker: Makes a tracker of an episode from the task's sentence, such as `HouseholdTracker`.
        form: The tags of a turn.
        format_penalty: Taken off the reward of a malformed turn, whose spoiled segments score 0.

    Raises:
        InputError: An unknown signal, or a penalty below 0.
    """

    def __init__(
        self,
        env: TextEnv,
        verifiers: Mapping[str, Verifier],
        *,
        tracker: Callable[[str], Tracker] | None = None,
        form: CommitmentFormat | None = None,
        format_penalty: float = FORMAT_PENALTY,
    ) -> None:
        for name in verifiers:
            if name not in SIGNALS:
                raise InputError(f"verifiers: '{name}' is no signal; there are {', '.join(SIGNALS)}")
            if not callable(verifiers[name]):
                raise InputError(f"verifiers: that of '{name}' must be a function of a claim and its evidence")
        check_number("format_penalty", format_penalty, low=0.0)
        self.env, self.verifiers, self.form = env, dict(verifiers), form or CommitmentFormat()
        self.format_penalty = format_penalty
        self._make_tracker = tracker
        self._tracker: Tracker | None = None
        self._seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the first observation and ``info``."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._seen = [observation or ""]
        if self._make_tracker is not None:
            if "task" not in info:
                raise InputError("tracker: it is made from info['task'], which the environment's reset does not give")
            self._tracker = self._make_tracker(info["task"])
        return observation, info

    def step(self, command: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score a turn's statement, carry out its command, and score its prediction by the answer.

        A turn without a command does nothing in the environment but takes its time.

        Raises:
            InputError: No episode has begun, or a verifier's score is not in [0, 1].
        """
        if not self._seen:
            raise InputError("no episode has begun; call reset() first")
        said = self.form.parse(command)
        facts = {} if self._tracker is None else self._tracker.facts()
        process = self._scored("progress", said.progress, Evidence(tuple(self._seen), facts))
        action = said.action or ""
        observation, reward, terminated, truncated, info = self.env.step(action)
        process |= self._foretold(said.prediction, observation)
        if self._tracker is not None and observation:
            self._tracker.observe(action, observation)
        self._seen.append(observation or "")
        if said.errors:
            reward -= self.format_penalty
        told = {**info, "process": process, "commitment": said, "valid": bool(action) and info.get("valid", True)}
        return observation, reward, terminated, truncated, told

    def state_key(self, full: bool = False) -> Hashable:
        """Return the environment's own key."""
        return self.env.state_key(full)

    def _foretold(self, prediction: str | None, observation: str) -> dict[str, float]:
        """Return the score of a prediction, NaN where the environment showed nothing that it could be judged by."""
        if not observation:
            return {"prediction": math.nan}
        expected = {} if self._tracker is None else self._tracker.seen(observation)
        return self._scored("prediction", prediction, Evidence((observation,), expected, self._seen[-1]))

    def _scored(self, name: str, claim: str | None, evidence: Evidence) -> dict[str, float]:
        verifier = self.verifiers.get(name)
        if verifier is None:
            return {name: math.nan}
        score = 0.0 if claim is None else float(verifier(claim, evidence))
        if not (0 <= score <= 1 or math.isnan(score)):
            raise InputError(f"verifiers: that of '{name}' returned {score}; a score is in [0, 1], or NaN")
        scores = {name: score}
        if name == "progress" and hasattr(verifier, "parts"):
            parts = verifier.parts(claim or "", evidence)
            scores |= {f"{name}.{key}": value for key, value in parts.items()}
        return scores
