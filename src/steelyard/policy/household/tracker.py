"""What an agent can know of a household game from its own commands and what they were answered: nothing more."""

from __future__ import annotations

from dataclasses import dataclass, field

NONE, TARGET, OTHER = "none", "target", "other"
MOST_PLACED = 2


def command_words(command: str) -> tuple[str, str, str]:
    """Return verb, object and receptacle of a command, each with its number; empty where it names none.

    The one word of `open`, `close`, `examine` and `use` stands for both.
    """
    verb, _, rest = command.partition(" ")
    if verb == "go":
        return verb, "", rest.removeprefix("to ")
    for joint in (" from ", " to ", " with "):
        first, found, second = rest.partition(joint)
        if found:
            return verb, first, second
    return verb, rest, rest


def base(name: str) -> str:
    """Return a name without its number."""
    return name.rpartition(" ")[0] or name


@dataclass
class HouseholdTracker:
    """What is held, whether it was transformed, and how many targets were placed.

    A target is an object whose base name occurs in the task's sentence. `taken`, `moved` and the transforms count only
    when the answer says that they happened.

    Attributes:
        task: The task's sentence.
        hold: "none", "target" or "other".
        done: Whether what is held was cleaned, heated or cooled since it was taken.
        placed: Targets moved to a receptacle, at most 2.
    """

    task: str
    hold: str = NONE
    done: bool = False
    placed: int = 0
    _words: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._words = task_words(self.task)

    def observe(self, command: str, observation: str) -> None:
        """Take in a command and what it was answered."""
        if observation.startswith("You pick up the "):
            name = base(command_words(command)[1])
            self.hold, self.done = (TARGET if name in self._words else OTHER), False
        elif observation.startswith("You move the "):
            self.placed = min(self.placed + (self.hold == TARGET), MOST_PLACED)
            self.hold, self.done = NONE, False
        elif observation.startswith(("You clean the ", "You heat the ", "You cool the ")):
            self.done = True

    def facts(self) -> dict[str, str]:
        """Return what a progress statement is checked against."""
        return {"hold": self.hold, "done": "yes" if self.done else "no", "placed": str(self.placed)}

    def seen(self, observation: str) -> dict[str, str]:
        """Return what a prediction of ``observation`` is checked against."""
        return {"next": observation_class(observation, self._words)}


def task_words(task: str) -> frozenset[str]:
    """Return the words of a task's sentence."""
    return frozenset(task.lower().replace(".", " ").replace(",", " ").split())


def appliance(task: str) -> str:
    """Return the appliance that a task needs, or "two" or "put" where it needs none."""
    words = task_words(task)
    for needed, name in (
        (("clean",), "sinkbasin"),
        (("heat", "hot"), "microwave"),
        (("cool",), "fridge"),
        (("examine", "look"), "desklamp"),
        (("two",), "two"),
    ):
        if words.intersection(needed):
            return name
    return "put"


CLASSES = ("closed", "empty", "target", "other", "picked", "moved", "transformed", "on", "misc")
"""Kinds of observations that predictions are about."""
_STARTS = (
    ("You pick up", "picked"),
    ("You move", "moved"),
    ("You clean", "transformed"),
    ("You heat", "transformed"),
    ("You cool", "transformed"),
    ("You turn on", "on"),
)


def observation_class(observation: str, words: frozenset[str]) -> str:
    """Return which of `CLASSES` an observation is; ``words`` are those of the task's sentence."""
    for start, kind in _STARTS:
        if observation.startswith(start):
            return kind
    if observation.endswith("is closed."):
        return "closed"
    _, found, listed = observation.partition(", you see ")
    if not found or observation.startswith("You are"):
        return "misc"
    if listed.startswith("nothing"):
        return "empty"
    names = [part.removeprefix("and ").removeprefix("a ").rstrip(".") for part in listed.split(", ")]
    return "target" if any(base(name) in words for name in names) else "other"
