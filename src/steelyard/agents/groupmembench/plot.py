"""What happens in a generated chat before it has words: stories of decisions, dates, paths, blockers, and replies."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

import numpy as np

from steelyard.agents.groupmembench.ontology import (
    ACTIONS,
    ARTIFACTS,
    BLOCKERS,
    CHANNELS,
    DETAILS,
    DOMAINS,
    PHASES,
    STATUSES,
    TOPICS,
)
from steelyard.agents.groupmembench.realise import Event, Persona

START = datetime(2025, 6, 19, 8, tzinfo=UTC)
"""When a generated chat begins."""

_TONES = ("terse", "chatty", "formal")
_ARC = 17  # messages of one story; what is left of a phase is chatter
_COMMON_WORD, _OWN_WORD = 0.6, 0.25  # how often a thing gets its common name, or the speaker's; else the listener's
_ACROSS = 0.5  # share of changes and statuses that stand in the steering thread
_DETAILED = 0.3  # share of stories in which a detail is told
_DETAIL_KINDS = 2  # kinds of details that a chat has at all
_BLOCKED = 0.25  # share of stories in which two people are blocked
_STATED = 0.5  # share of stories that have a status; likewise an owner, a deadline, a wished date, another option
_NAMED_FILE = 0.65  # share of files that are called what they are
_STEERING = -1  # the number of the steering thread among a phase's stories

Hardness = Literal["shipped", "easy"]


class Settings(NamedTuple):
    """What a chat is generated from."""

    domain: str
    users: int
    channels: int
    phases: int
    messages_per_phase: int
    p_chain: float
    p_branch: float
    noise: float
    hardness: Hardness


class Draft:
    """A message before it has words and a time: an event, who says it to whom, and what it answers."""

    __slots__ = ("arc", "audience", "channel", "event", "id", "key", "parent", "phase_number", "speaker")

    def __init__(self, event: Event, speaker: int, audience: str, key: float, arc: int) -> None:
        self.event, self.speaker, self.audience, self.key, self.arc = event, speaker, audience, key, arc
        self.parent: Draft | None = None
        self.id = self.channel = ""
        self.phase_number = 0


class World(NamedTuple):
    """Personas, names and streams of one chat."""

    settings: Settings
    personas: tuple[Persona, ...]
    names: tuple[str, ...]
    details: tuple[str, ...]
    generator: np.random.Generator

    def alias(self, entity: int, speaker: int, audience: str) -> str:
        """Return what ``speaker`` calls ``entity`` towards a role: its common name, the own word or the listener's."""
        toss = self.generator.random()
        if toss < _COMMON_WORD:
            return self.names[entity]
        if toss >= _COMMON_WORD + _OWN_WORD:
            listener = next((one for one in self.personas if one.role == audience), self.personas[speaker])
            return listener.aliases[entity]
        return self.personas[speaker].aliases[entity]


def make_world(settings: Settings, generator: np.random.Generator) -> World:
    """Return users with roles, tones and their role's name for each entity; which name is whose is drawn."""
    domain = DOMAINS[settings.domain]
    words: dict[str, list[str]] = {role: [] for role in domain.roles}
    for forms in domain.entities:
        order = generator.permutation(len(domain.roles))
        for place, role in zip(order, domain.roles, strict=True):
            words[role].append(forms[int(place) % len(forms)])
    roles = [domain.roles[number % len(domain.roles)] for number in range(settings.users)]
    generator.shuffle(roles)
    personas = tuple(
        Persona(f"User_{number + 1}", role, _TONES[int(generator.integers(3))], tuple(words[role]))
        for number, role in enumerate(roles)
    )
    names = tuple(forms[0] for forms in domain.entities)
    told = tuple(str(kind) for kind in generator.choice(tuple(DETAILS), _DETAIL_KINDS, replace=False))
    return World(settings, personas, names, told, generator)


class Plot:
    """The drafts of one channel in one phase."""

    def __init__(self, world: World, phase: str) -> None:
        self.world, self.phase, self.drafts = world, phase, list[Draft]()
        self._draw = world.generator

    def say(self, kind: str, entity: int, key: float, arc: int, by: int | None = None, **facts: str) -> Draft:
        """Add an event by user number ``by``, or a random one, to a random role."""
        personas = self.world.personas
        speaker = int(self._draw.integers(len(personas))) if by is None else by
        audience = personas[int(self._draw.integers(len(personas)))].role
        alias = self.world.alias(entity, speaker, audience) if entity >= 0 else ""
        draft = Draft(Event(kind, entity, alias, self.phase, **facts), speaker, audience, key, arc)
        self.drafts.append(draft)
        return draft

    def between(self, low: float, high: float) -> float:
        """Return a random place of a message in its phase."""
        return float(self._draw.uniform(low, high))

    def pick(self, values: tuple[str, ...], count: int) -> list[str]:
        """Return ``count`` different values."""
        return [values[int(place)] for place in self._draw.choice(len(values), count, replace=False)]

    def attach(self) -> None:
        """Give every draft without a fixed parent one by chain, branch or none, in the order of time."""
        settings = self.world.settings
        self.drafts.sort(key=lambda draft: draft.key)
        for place, draft in enumerate(self.drafts):
            if draft.parent is not None or draft.event.kind in ("root", "steering", "glossary"):
                continue
            before = [other for other in self.drafts[:place] if other.arc == draft.arc]
            toss = self._draw.random()
            if before and toss < settings.p_chain:
                draft.parent = before[-1]
            elif before and toss < settings.p_chain + settings.p_branch:
                draft.parent = before[int(self._draw.integers(len(before)))]


def tell_decision(plot: Plot, entity: int, arc: int, topic: str) -> None:
    """Add root, proposals, a decision, its change, and restatements of what no longer holds."""
    easy = plot.world.settings.hardness == "easy"
    old, new, other = plot.pick(TOPICS[topic], 3)
    plot.say("root", entity, plot.between(0, 0.02), arc, topic=topic)
    proposal = plot.say("proposal", entity, plot.between(0.05, 0.12), arc, topic=topic, value=old)
    if plot.world.generator.random() < _STATED:
        plot.say("option", entity, plot.between(0.12, 0.2), arc, topic=topic, value=other)
    decision = plot.say("decision", entity, plot.between(0.2, 0.35), arc, topic=topic, value=old)
    decision.parent = proposal
    across = not easy and plot.world.generator.random() < _ACROSS
    change = plot.say(
        "change", entity, plot.between(0.5, 0.7), _STEERING if across else arc, topic=topic, value=new, old=old
    )
    if easy:
        change.parent = decision
        return
    others = [number for number in range(len(plot.world.personas)) if number != change.speaker]
    by = others[int(plot.world.generator.integers(len(others)))]  # who changed it does not forget it
    plot.say("restatement", entity, plot.between(0.72, 0.99), arc, by=by, topic=topic, value=old)


def tell_facts(plot: Plot, entity: int, arc: int) -> None:
    """Add a path that someone asks for, a promised date among others, a status, an owner, a deadline, two blockers."""
    generator, between = plot.world.generator, plot.between
    artifact, action = plot.pick(ARTIFACTS, 1)[0], plot.pick(ACTIONS, 1)[0]
    asked = plot.say("ask_path", entity, between(0.15, 0.6), arc, topic=artifact)
    answer = plot.say("path", entity, between(asked.key + 0.01, 0.95), arc, topic=artifact)
    answer.event = replace(answer.event, value=path_of(plot, answer.event))
    answer.parent = asked
    wished, promised = (
        str((START + timedelta(days=int(day))).date()) for day in generator.choice(60, 2, replace=False)
    )
    plot.say("commitment", entity, between(0.2, 0.9), arc, topic=action, value=promised)
    if generator.random() < _STATED:
        plot.say("request", entity, between(0.15, 0.99), arc, topic=action, value=wished)
    side = _STEERING if generator.random() < _ACROSS and plot.world.settings.hardness == "shipped" else arc
    if generator.random() < _STATED:
        plot.say("status", entity, between(0.4, 0.95), side, value=plot.pick(STATUSES, 1)[0])
    if generator.random() < _STATED:
        owner = plot.world.personas[int(generator.integers(len(plot.world.personas)))].user
        plot.say("owner", entity, between(0.3, 0.95), arc, value=owner)
    if generator.random() < _STATED:
        gate = str((START + timedelta(days=int(generator.integers(60)))).date())
        plot.say("deadline", entity, between(0.3, 0.95), arc, value=gate)
    if generator.random() < _BLOCKED:
        users = generator.choice(len(plot.world.personas), 2, replace=False)
        for user, value in zip(
            users.tolist()[: 1 + int(generator.random() < _STATED)], plot.pick(BLOCKERS, 2), strict=False
        ):
            plot.say("blocker", entity, between(0.2, 0.95), arc, value=value, by=user)
    if generator.random() < _DETAILED:
        kind = plot.world.details[int(generator.integers(len(plot.world.details)))]
        digits = dict(zip("abc", generator.integers(1, 10, 3).tolist(), strict=True))
        plot.say("detail", entity, between(0.2, 0.95), arc, topic=kind, value=DETAILS[kind][1].format(**digits))


def path_of(plot: Plot, event: Event) -> str:
    """Return a path: the artifact's own name in half of them, else a number."""
    generator = plot.world.generator
    name = (
        event.topic.replace(" ", "-")
        if generator.random() < _NAMED_FILE
        else f"doc-{int(generator.integers(1000, 9999))}"
    )
    return f"/share/{event.alias.replace(' ', '-')}/{name}.{('xlsx', 'docx', 'pdf')[int(generator.integers(3))]}"


def plot_phase(world: World, phase: str, entities: list[int]) -> list[Draft]:
    """Return the drafts of one channel and phase, in the order of time and with parents."""
    plot = Plot(world, phase)
    if world.settings.hardness == "shipped":
        plot.say("steering", -1, plot.between(0.05, 0.38), _STEERING)
    topics = plot.pick(tuple(TOPICS), len(entities))
    for arc, (entity, topic) in enumerate(zip(entities, topics, strict=True)):
        tell_decision(plot, entity, arc, topic)
        tell_facts(plot, entity, arc)
    least = round(world.settings.noise * world.settings.messages_per_phase)
    for _ in range(max(least, world.settings.messages_per_phase - len(plot.drafts))):
        arc = int(world.generator.integers(-1, len(entities)))
        entity = entities[arc] if arc >= 0 else int(world.generator.integers(len(world.names)))
        topic = plot.pick((*ACTIONS, *ARTIFACTS), 1)[0]
        plot.say("noise", entity, plot.between(0.03, 1), arc, topic=topic)
    plot.attach()
    return plot.drafts


def deal(world: World) -> list[list[list[int]]]:
    """Return the entities of each phase and channel; a phase has each entity in one channel only."""
    settings = world.settings
    room = (1 - settings.noise) * settings.messages_per_phase / _ARC
    each = max(1, min(len(world.names) // settings.channels, round(room)))
    dealt = []
    for _ in range(settings.phases):
        order = world.generator.permutation(len(world.names)).tolist()
        dealt.append([order[place * each : (place + 1) * each] for place in range(settings.channels)])
    return dealt


def glossary(world: World) -> list[Draft]:
    """Return the lines of the easy chat that explain every name: first thing in the first channel."""
    plot = Plot(world, PHASES[0])
    for entity, forms in enumerate(DOMAINS[world.settings.domain].entities):
        for form in forms[1:]:
            line = plot.say("glossary", entity, 0.0, 0, value=form)
            line.event = replace(line.event, alias=world.names[entity])
            line.channel = CHANNELS[0]
    return plot.drafts
