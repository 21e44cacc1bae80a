"""Words for events: templates, tones, and the check that a language model's sentence still holds the fact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import InputError

LONGEST = 2000
"""Letters of a message that a user's realiser may return."""


@dataclass(frozen=True, slots=True)
class Persona:
    """Who speaks: user name, role, tone, and the names that this role has for each entity."""

    user: str
    role: str
    tone: str
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens in a phase; what a realiser is told.

    Attributes:
        kind: ``root``, ``proposal``, ``option``, ``decision``, ``change``, ``restatement``, ``ask_path``, ``path``,
            ``commitment``, ``request``, ``status``, ``owner``, ``deadline``, ``blocker``, ``detail``, ``steering``,
            ``glossary`` or ``noise``.
        entity: Index of the entity, or -1.
        alias: The name of it that this speaker uses towards this audience.
        phase: Name of the phase.
        topic: What is being settled; the action or artifact of dates and paths.
        value: The fact: it stands word for word in the message ("" for none).
        old: The decision that a change supersedes.
    """

    kind: str
    entity: int = -1
    alias: str = ""
    phase: str = ""
    topic: str = ""
    value: str = ""
    old: str = ""


Realiser = Callable[[Event, Persona, str, Sequence[str]], str]
"""(event, speaker, role of the audience, latest texts of the channel) -> text."""

TEMPLATES: dict[str, tuple[str, ...]] = {
    "root": (
        "{phase}: opening a thread on {alias}. Mainly the {topic}, plus dates and loose ends.",
        "Starting {alias} for {phase} here, first question is the {topic}.",
        "{phase} kick-off, {alias}. We still owe people the {topic}.",
    ),
    "proposal": (
        "My vote for the {topic}: {value}.",
        "I would take {value}, it is the sane {topic} to me.",
        "{value} looks like the best {topic} for {alias} to me.",
    ),
    "option": (
        "{value} would be fine with me too, less fuss.",
        "Other teams picked {value} as their {topic}, just saying.",
        "Could also be {value}, if the {topic} has to be cheap.",
    ),
    "decision": (
        "Settled then, {topic} for {alias}: {value}.",
        "Agreed in the call, {value}.",
        "Writing it down as {topic}: {value}. Thanks all.",
    ),
    "change": (
        "{value} it is for {alias}, the auditors would not sign any other {topic}.",
        "Legal left us one road with the {topic} of {alias}: {value}.",
        "Steering came back, {alias} goes with {value} as {topic} and that is the line to hold.",
        "The first {topic} broke after two days at {alias}. {value} works, so that is what people run from Monday.",
        "Please plan {alias} around {value}, the sponsor was firm.",
    ),
    "restatement": (
        "For anyone who was out: the {topic} for {alias} is {value}, see the kick-off notes.",
        "From my notes of the first call, {topic} of {alias}: {value}.",
        "First call, for the newcomers: {alias} has {value} as {topic}.",
    ),
    "ask_path": (
        "Where do I find the {topic} of {alias}?",
        "Does anyone have the {topic} for {alias} at hand?",
        "Asking for {alias}: who keeps the {topic}, and where?",
    ),
    "path": (
        "It sits under {value}, shout if you lack rights.",
        "{value} and mind the second tab.",
        "I put the {topic} here: {value}",
        "The latest {topic} of {alias} is {value}",
    ),
    "commitment": (
        "I will have the {topic} for {alias} done by {value}.",
        "Count on me for the {topic} ({alias}), due {value}.",
        "{topic} for {alias}: mine, finished by {value}.",
    ),
    "request": (
        "Could the {topic} be through by {value}? Would help.",
        "Ideally we see {alias} and its {topic} by {value}, can anyone say?",
        "I had {value} in my calendar for the {topic}, not sure.",
    ),
    "status": (
        "{alias} is {value}.",
        "Short one from me, {alias}: {value}.",
        "As of today {alias} counts as {value}.",
    ),
    "owner": (
        "{alias} sits with {value}.",
        "Please send anything about {alias} to {value}.",
        "{value} looks after {alias}.",
    ),
    "deadline": (
        "{alias} has to be through on {value}.",
        "The gate for {alias} is {value}.",
        "Hard stop for {alias}: {value}.",
    ),
    "blocker": (
        "I am waiting for {value} and cannot go on with {alias}.",
        "Stuck with {alias}, I am waiting for {value}.",
        "My blocker on {alias} is {value}, I am waiting for it.",
        "{alias} is on hold for me, the blocker is {value}.",
    ),
    "detail": (
        "For {alias} I noted {value} as {topic}.",
        "{topic} of {alias}, in case someone asks: {value}.",
        "We have {value} at {alias} ({topic}).",
    ),
    "steering": (
        "Notes from the steering call on {phase} below, items as they came up.",
        "{phase}, what I took away from the sponsor meeting:",
    ),
    "noise": (
        "Coffee machine on the third floor is alive again.",
        "Running five minutes late, start without me.",
        "Thanks, that helps a lot.",
        "Can someone resend the invite? I lost it.",
        "Nice work everyone, that was quick.",
        "I am out on Friday, back after the weekend.",
        "Does the {topic} meeting really need an hour?",
        "Who has the room key?",
        "Fair point, let me think about it.",
        "Sorry, wrong thread.",
        "Reading up on {alias}, will come back with questions.",
        "Good to see {alias} getting some attention.",
        "What is the status of the lunch order?",
        "My current approach to inbox zero: delete all.",
        "Who owns the plant in the hallway? It needs water.",
    ),
}  # fmt: skip
EASY: dict[str, tuple[str, ...]] = {
    "change": ("Update for {phase}: we changed the {topic} of {alias}, now {value} instead of {old}.",),
    "glossary": ("Glossary: {alias} = {value}",),
}
OPENERS = {
    "terse": ("", "", ""),
    "chatty": ("Hey all, ", "Right, ", "So, ", "Morning! ", "Quick heads up for the whole team: "),
    "formal": ("", "For the record, ", "Kindly note: ", "Dear colleagues, for the project minutes: "),
}
CLOSERS = {
    "terse": ("", ""),
    "chatty": ("", " Ping me if that is odd.", " Anyway, back to work."),
    "formal": ("", " Regards.", " Please acknowledge."),
}
PHASELESS = ("root", "steering", "noise", "glossary")  # kinds that the easy chat does not prefix with the phase


def template_text(event: Event, persona: Persona, generator: np.random.Generator, easy: bool = False) -> str:
    """Return a sentence for ``event`` in the speaker's tone; the easy chat names the phase in every one."""
    known = {**TEMPLATES, **EASY} if easy else TEMPLATES
    choices = known[event.kind]
    body = choices[int(generator.integers(len(choices)))].format(
        alias=event.alias, phase=event.phase, topic=event.topic, value=event.value, old=event.old
    )
    if easy:
        return body if event.kind in PHASELESS or event.phase in body else f"{event.phase}: {body}"
    opener = _pick(OPENERS[persona.tone], generator)
    closer = _pick(CLOSERS[persona.tone], generator)
    if opener and body.split()[0].istitle() and not body.startswith(("I ", "User_")):
        body = body[0].lower() + body[1:]
    return f"{opener}{body}{closer}"


def checked(text: object, event: Event) -> str | None:
    """Return a realiser's text, or None when it does not hold the fact (the template is used then).

    Raises:
        InputError: It is no text, empty or too long.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise InputError(f"realise must return 1 to {LONGEST} letters of text, got {str(text)[:40]!r} for {event.kind}")
    needed = [event.value] if event.value else []
    if event.kind == "root":
        needed.append(event.phase)
    return text if all(fact.lower() in text.lower() for fact in needed) else None


def _pick(choices: Sequence[str], generator: np.random.Generator) -> str:
    return choices[int(generator.integers(len(choices)))]
