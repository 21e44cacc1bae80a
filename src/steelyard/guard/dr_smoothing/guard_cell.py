"""One arm on one seed's prompts: plain, natural and adaptive attacks, clean prompts and benign ones, by the vote."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import rng
from steelyard.contracts import CellInput, Measured
from steelyard.errors import NoEffectWarning
from steelyard.guard.dr_smoothing.adaptive import Objective, adaptive_eval
from steelyard.guard.dr_smoothing.attack import STYLES, Search, Style, attack
from steelyard.guard.dr_smoothing.baselines import EraseAndCheck
from steelyard.guard.dr_smoothing.config import Config
from steelyard.guard.dr_smoothing.core import majority
from steelyard.guard.dr_smoothing.defences import kernel, smoothing
from steelyard.guard.dr_smoothing.guard_data import share_of_seed
from steelyard.guard.dr_smoothing.rates import both_sides, share_passed
from steelyard.guard.dr_smoothing.result import SmoothingWarning
from steelyard.guard.dr_smoothing.smoothing import DRSmoothing
from steelyard.guard.dr_smoothing.victim import PASSED, REFUSED, EmbeddingGuard, embed

FLOORS = ("block_all", "pass_all")
_TUNING_SHARES = 3  # seeds of a tuning run, each with its share of the tuning prompts


@dataclass(frozen=True)
class Outcome:
    """What a defence made of one text: its votes (1 = let through), the verdict, the copies that the guard read."""

    votes: tuple[int, ...]
    passed: bool
    copies: tuple[str, ...]
    calls: int
    rectified: int


class Reader:
    """A model behind the guard that remembers the embedding of every text that it read.

    Args:
        guard: The guard.
    """

    def __init__(self, guard: EmbeddingGuard) -> None:
        self._guard = guard
        self._known: dict[str, NDArray[np.float32]] = {}
        self.encodes = 0

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the embeddings of ``texts``, float32 (texts, width)."""
        fresh = list(dict.fromkeys(text for text in texts if text not in self._known))
        self._known.update(zip(fresh, embed(fresh), strict=True))
        self.encodes += len(fresh)
        return np.stack([self._known[text] for text in texts])

    def flags(self, texts: Sequence[str]) -> list[bool]:
        """Say of each text whether the guard flags it."""
        logits = self.vectors(texts) @ self._guard.weights + self._guard.bias
        return [bool(logit > 0) for logit in logits]

    def respond(self, prompts: Sequence[Any]) -> list[str]:
        """Return what the guard lets a model say to each prompt."""
        return [REFUSED if flagged else PASSED for flagged in self.flags(prompts)]


def passed(answer: str) -> bool:
    """Judge an answer of the guarded model: 1 when the guard let the prompt through."""
    return answer == PASSED


def run(cell: CellInput) -> Measured:
    """Measure one arm on the prompts of one seed."""
    config = Config(**{"n": cell.params["n"], **cell.config})
    guard = EmbeddingGuard(cell.data["weights"], float(cell.data["bias"]))
    reader, sets = Reader(guard), prompts_of(cell)
    with warnings.catch_warnings():
        # That a vote harms, or a short prompt stays as it is, is measured here instead of warned about.
        warnings.simplefilter("ignore", SmoothingWarning)
        warnings.simplefilter("ignore", NoEffectWarning)
        found = {name: outcomes(cell, config, reader, texts, sets["clean"]) for name, texts in sets.items()}
        metrics = _metrics(found, config.gamma)
        metrics["fidelity"] = _fidelity(reader, sets["benign"], found["benign"])
        adaptive, encodes = _adaptive(cell, config, guard, reader, sets["clean"], found)
    return Measured({**metrics, **adaptive}, steps=sum(map(len, sets.values())) + reader.encodes + encodes)


def prompts_of(cell: CellInput) -> dict[str, list[str]]:
    """Return the prompts of one seed: attacked in each style (aligned with ``clean``), natural attacks, benign.

    Evaluation seeds take consecutive shares of the prompts, tuning seeds a share of the tuning prompts.
    """
    part = cell.root
    clean = _share(cell, len(cell.data[f"{part}_forbidden"]), cell.params["prompts"])
    benign = _share(cell, len(cell.data[f"{part}_benign"]), cell.params["benign"])
    natural = _share(cell, len(cell.data[f"{part}_natural"]), cell.params.get("natural", 0))
    rows = {**{style: (f"{part}_{style}", clean) for style in STYLES}, "clean": (f"{part}_forbidden", clean),
            "natural": (f"{part}_natural", natural), "benign": (f"{part}_benign", benign)}  # fmt: skip
    return {name: [str(cell.data[key][index]) for index in chosen] for name, (key, chosen) in rows.items()}


def _share(cell: CellInput, there: int, wanted: int) -> list[int]:
    if cell.root == "tuning":
        return list(range(cell.seed % _TUNING_SHARES, there, _TUNING_SHARES))
    return share_of_seed(cell.seed, wanted, there)


def outcomes(
    cell: CellInput, config: Config, reader: Reader, texts: Sequence[str], clean: Sequence[str]
) -> list[Outcome]:
    """Return what the arm makes of each text; ``clean`` are the goals behind the attacked texts."""
    if not texts:
        return []
    if config.kind == "coin":
        base = float(np.mean(reader.flags([*clean, *prompts_of(cell)["benign"]])))
        return [_coins(cell, config, text, base) for text in texts]
    if config.kind in FLOORS:
        return [_single(config.kind == "block_all", text, 0) for text in texts]
    if config.kind == "oracle":
        goals = [next((goal for goal in clean if text.startswith(goal)), text) for text in texts]
        return [_single(flagged, goal, 1) for flagged, goal in zip(reader.flags(goals), goals, strict=True)]
    if config.kind == "erase_and_check":
        filtered = EraseAndCheck(reader, reader.respond, max_erase=config.max_erase, judge=passed)
        found = filtered.batch(texts)
        return [
            _single(not one.jailbroken, text, len(filtered.erased(text)))
            for one, text in zip(found, texts, strict=True)
        ]
    return _smoothed(defence_of(config, reader, cell.seed), texts)


def defence_of(config: Config, reader: Reader, seed: int) -> DRSmoothing:
    """Return the smoothing defence of an arm round the guard; kind ``restored`` has a rectifier that undoes the noise.

    No real rectifier can; it shows what a too faithful one is worth.
    """
    if config.kind != "restored":
        return smoothing(config, reader.respond, passed, seed)
    disrupt, origins = kernel(config), dict[str, str]()

    def noted(text: str, noise: np.random.Generator) -> str:
        changed = str(disrupt(text, noise))
        origins[changed] = text
        return changed

    return DRSmoothing(
        reader.respond, disrupt=noted, rectify=lambda changed: origins[changed], judge=passed, n=config.n,
        gamma=config.gamma, seed=seed,
    )  # fmt: skip


def _smoothed(defence: DRSmoothing, texts: Sequence[str]) -> list[Outcome]:
    return [
        Outcome(one.votes, one.jailbroken, tuple(copy.rectified for copy in one.copies), one.calls,
                one.counts["rectifier_calls"])
        for one in defence.batch(list(texts))
    ]  # fmt: skip


def _single(flagged: bool, text: str, calls: int) -> Outcome:
    return Outcome((int(not flagged),), not flagged, (text,), calls, 0)


def _coins(cell: CellInput, config: Config, text: str, base: float) -> Outcome:
    """Return a vote of coins, each "let through" with one minus the guard's base rate."""
    coins = rng.generator("coins", f"{cell.task}/{text}", cell.seed).random(config.n) >= base
    return Outcome(tuple(map(int, coins)), majority(coins.tolist(), config.gamma), (text,), 0, 0)


def _metrics(found: Mapping[str, Sequence[Outcome]], gamma: float) -> dict[str, float]:
    every = [one for ones in found.values() for one in ones]
    verdicts = {name: [(one.votes, one.passed) for one in ones] for name, ones in found.items()}
    attacked = [one for style in STYLES for one in verdicts[style]]
    metrics = both_sides(attacked, verdicts["benign"], gamma)
    metrics |= {f"asr_{style}": share_passed(verdicts[style]) for style in STYLES}
    metrics["recall"] = 1 - share_passed(verdicts["clean"])
    metrics["calls"] = float(np.mean([one.calls for one in every]))
    metrics["rectifier_calls"] = float(np.mean([one.rectified for one in every]))
    if verdicts["natural"]:
        metrics["asr_natural"] = share_passed(verdicts["natural"])
    return metrics


def _fidelity(reader: Reader, texts: Sequence[str], found: Sequence[Outcome]) -> float:
    """Return the mean cosine between the copies of benign prompts that the guard reads and the prompts."""
    pairs = zip(found, reader.vectors(texts), strict=True)
    return float(np.mean([np.mean(reader.vectors(one.copies) @ vector) for one, vector in pairs]))


def _adaptive(
    cell: CellInput,
    config: Config,
    guard: EmbeddingGuard,
    reader: Reader,
    clean: Sequence[str],
    plain: Mapping[str, Sequence[Outcome]],
) -> tuple[dict[str, float], int]:
    """Attack the arm's defence itself on some prompts, and judge what comes out with noise the attacker never saw."""
    prompts = list(clean)[: cell.params.get("adaptive_prompts", 0)]
    if not prompts or cell.arm not in cell.params.get("adaptive", ()):
        return {}, 0
    defence = defence_of(config, reader, cell.seed)
    samples = 1 if config.kind == "rectify_only" else config.draws  # one draw is all there is without noise
    reports = [
        adaptive_eval(defence, _attacker(cell, guard, STYLES[style]), prompts=prompts, n_samples=samples,
                      loss=lambda texts: guard.logits([str(text) for text in texts]).tolist(), seed=cell.seed)
        for style in cell.params["adaptive_styles"]
    ]  # fmt: skip
    broken = [[one.jailbroken for one in report.results] for report in reports]
    ways = [*broken, *([one.passed for one in plain[style][: len(prompts)]] for style in STYLES)]
    metrics = {"asr_adaptive": float(np.mean(broken)), "asr_worst": float(np.mean(np.any(ways, axis=0)))}
    return metrics, sum(report.queries for report in reports)


def _attacker(cell: CellInput, guard: EmbeddingGuard, style: Style) -> Callable[[str, Objective], str]:
    """Return the attack for an adaptive evaluation: it goes on from the plain suffix, so that it is never weaker."""
    part, search = cell.root, Search(steps=cell.params["adaptive_steps"])
    attacked = dict(
        zip(map(str, cell.data[f"{part}_forbidden"]), map(str, cell.data[f"{part}_{style.name}"]), strict=True)
    )

    def attacker(prompt: str, objective: Objective) -> str:
        stream = cell.rng(f"adaptive/{style.name}/{prompt}")
        start = attacked[prompt][len(prompt) + 1 :]
        return attack(guard, prompt, style, stream, objective, search, start).text

    return attacker
