"""What a run over questions gave: accuracies with intervals, every answer, and how two runs differ."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from steelyard.agents.groupmembench.core import micro_macro
from steelyard.agents.ranking import Interval, binomial_interval, paired_bootstrap
from steelyard.errors import InputError


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """One question of a run.

    Attributes:
        id: Of the question.
        type: Of the question.
        correct: Whether the judge said so; an unclear verdict and a failed call count as wrong.
        unclear: Whether the judge's verdict was unclear.
        answer: The reader's final answer.
        hit_ids: Messages that the memory returned, best first.
        recall: Share of the gold evidence among them, None where it is not known.
        error: Why the reader or the judge could not be asked, or an empty text.
    """

    id: str
    type: str
    correct: bool
    unclear: bool
    answer: str
    hit_ids: tuple[str, ...]
    recall: float | None
    error: str = ""


class GroupMemReport:
    """Results of one memory, with one reader and one judge.

    Absolute numbers belong to that reader and judge (another harness moved BM25 by 10 points): compare with BM25 in
    the same harness only.

    Args:
        rows: One per question.
        k: How many messages a question was given.

    Raises:
        InputError: There are no rows.
    """

    def __init__(self, rows: Iterable[QuestionRow], k: int) -> None:
        self.rows = tuple(rows)
        self.k = k
        if not self.rows:
            raise InputError("a report needs at least one question.")

    @cached_property
    def counts(self) -> dict[str, tuple[int, int]]:
        """(correct, questions) of every type."""
        counts: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            correct, n = counts.get(row.type, (0, 0))
            counts[row.type] = (correct + row.correct, n + 1)
        return counts

    @property
    def accuracy(self) -> dict[str, Interval]:
        """Share of right answers of every type, with its exact binomial 95 % interval."""
        return {kind: binomial_interval(*counts) for kind, counts in self.counts.items()}

    @property
    def micro(self) -> Interval:
        """Share of right answers over all questions (the paper's average), with its exact binomial 95 % interval."""
        return binomial_interval(sum(row.correct for row in self.rows), len(self.rows))

    @property
    def macro(self) -> float:
        """Mean of the types' accuracies."""
        return micro_macro(self.counts).macro

    @property
    def unclear(self) -> int:
        """How many verdicts were unclear (counted as wrong)."""
        return sum(row.unclear for row in self.rows)

    @property
    def failed(self) -> int:
        """How many questions failed on the way to the reader or the judge (counted as wrong)."""
        return sum(bool(row.error) for row in self.rows)

    @property
    def recall(self) -> float | None:
        """Mean recall of the gold evidence over the questions where it is known; None if for none."""
        known = [row.recall for row in self.rows if row.recall is not None]
        return math.fsum(known) / len(known) if known else None

    def compare(self, other: GroupMemReport, *, n: int = 10_000, seed: int = 0) -> Interval:
        """Return the difference of the micro-averages, this minus ``other``, by a paired bootstrap over questions.

        Raises:
            InputError: The two runs were not about the same questions.
        """
        mine, theirs = ({(row.type, row.id): float(row.correct) for row in report.rows} for report in (self, other))
        if mine.keys() != theirs.keys():
            raise InputError(
                f"the reports are not about the same questions: {len(mine.keys() - theirs.keys())} are only in the "
                f"first, {len(theirs.keys() - mine.keys())} only in the second."
            )
        keys = sorted(mine)
        return paired_bootstrap([mine[key] for key in keys], [theirs[key] for key in keys], n=n, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data that ``json.dumps`` takes."""
        return {
            "k": self.k,
            "micro": self.micro._asdict(),
            "macro": self.macro,
            "accuracy": {kind: interval._asdict() for kind, interval in self.accuracy.items()},
            "counts": {kind: list(counts) for kind, counts in self.counts.items()},
            "unclear": self.unclear,
            "failed": self.failed,
            "recall": self.recall,
            "rows": [{**asdict(row), "hit_ids": list(row.hit_ids)} for row in self.rows],
        }

    def __str__(self) -> str:
        lines = [f"{'type':<18} {'n':>4} {'correct':>7}   accuracy  95 % interval"]
        for kind, (correct, n) in self.counts.items():
            share = self.accuracy[kind]
            lines.append(f"{kind:<18} {n:>4} {correct:>7}   {share.estimate:8.2%}  {share.low:.2%} to {share.high:.2%}")
        share = self.micro
        total = sum(row.correct for row in self.rows)
        lines.append(
            f"{'micro':<18} {len(self.rows):>4} {total:>7}   {share.estimate:8.2%}  {share.low:.2%} to {share.high:.2%}"
        )
        lines.append(f"{'macro':<18} {'':>4} {'':>7}   {self.macro:8.2%}")
        lines.append(f"unclear verdicts: {self.unclear}, failed calls: {self.failed}")
        if self.recall is not None:
            lines.append(f"evidence recall@{self.k}: {self.recall:.3f}")
        return "\n".join(lines)
