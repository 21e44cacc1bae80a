"""A small generated library with tasks: embedded, and made so that links between skills help.

Twelve subjects with five skills each (read, clean, analyse, report, check), whose texts name each other as real ones
do.
A task goes through two or three stages of each of three subjects, names one skill a subject and describes the others
in words that their cards lack: rankings find the named ones, and links between skills lead to the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard import rng
from steelyard.agents.goskills.queries import Query
from steelyard.agents.goskills.skill import Skill

if TYPE_CHECKING:
    import numpy as np

_SUBJECTS = (
    ("tide", "tide gauge levels", "netcdf", "water heights along the coast"),
    ("bakery", "bakery orders", "csv", "loaves that customers asked for"),
    ("orchard", "orchard harvest weights", "xlsx", "apples picked from each tree"),
    ("tram", "tram timetables", "json", "departures at every stop"),
    ("choir", "choir recordings", "wav", "voices that sing together"),
    ("quarry", "quarry stone samples", "yaml", "rocks cut from the face"),
    ("beehive", "beehive temperatures", "parquet", "how warm colonies keep their brood"),
    ("library", "library loans", "sqlite", "books that readers took home"),
    ("glacier", "glacier photographs", "tiff", "ice edges seen from the air"),
    ("pottery", "pottery firing logs", "txt", "heat curves of a kiln"),
    ("harbour", "harbour ship calls", "xml", "vessels that moored at the pier"),
    ("garden", "garden seed inventories", "toml", "seeds kept for next spring"),
)
_STAGES = (
    ("reader", "Parses {data} from {format} files into a table. Use when {data} arrive as {format}.",
     "Never edit the source files. Pair it with {name}-cleaner.", "Load {plain} from the {format} files"),
    ("cleaner", "Removes duplicates and gaps from {data}. Use when readings are missing or doubled.",
     "Requires {name}-reader. See also {name}-analyst.", "Drop what is doubled or missing among {plain}"),
    ("analyst", "Finds trends and outliers in {data} with statistics. Not for forecasting.",
     "Depends on {name}-cleaner; then follow with {name}-reporter.", "Look for trends and outliers in {plain}"),
    ("reporter", "Writes a summary report with charts of {data} as PDF. Use to hand results to readers.",
     "Combine with {name}-analyst. Check the output with {name}-checker.", "Summarise {plain} with charts as pdf"),
    ("checker", "Validates tables and reports about {data} against limits. Use to verify before release.",
     "Use together with {name}-reporter. Do not use it on raw files.", "Make sure that limits hold for {plain}"),
)  # fmt: skip
TASKS = 36
_SUBJECTS_PER_TASK = 3


def toy_skills() -> list[Skill]:
    """Return the 60 skills of the toy library."""
    found = []
    for name, what, form, _ in _SUBJECTS:
        for stage, description, body, _ in _STAGES:
            words = {"name": name, "data": what, "format": form}
            found.append(
                Skill(
                    f"{name}-{stage}",
                    description.format(**words),
                    f"# {name.title()} {stage}\n\n{body.format(**words)}\n",
                    inputs=(form,) if stage == "reader" else (f"{name} table",),
                    outputs=("pdf",) if stage == "reporter" else (f"{name} table",),
                )
            )
    return found


def toy_queries() -> list[Query]:
    """Return 36 tasks of three subjects each; what each goes through and names is drawn from one stream."""
    draws = rng.generator("goskills", "toy", 0)
    return [_toy_query(draws, number) for number in range(TASKS)]


def _toy_query(draws: np.random.Generator, number: int) -> Query:
    lines, gold = ["Put three collections in order. It must be done within a day."], []
    for subject in draws.permutation(len(_SUBJECTS))[:_SUBJECTS_PER_TASK]:
        name, _, form, plain = _SUBJECTS[subject]
        stages = sorted(draws.permutation(len(_STAGES))[: 2 + int(draws.integers(2))].tolist())
        named = int(draws.integers(len(stages)))
        for place, stage in enumerate(stages):
            said = _STAGES[stage][3].format(plain=plain, format=form)
            gold.append(f"{name}-{_STAGES[stage][0]}")
            lines.append(f"{said}, with {gold[-1]}" if place == named else said)
    return Query("\n".join(lines), tuple(gold), f"toy {number}")
