"""Questions about a generated chat: one constructor per type, each with wordings and askers to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from steelyard.agents.groupmembench.ontology import DETAILS
from steelyard.agents.groupmembench.plot import Draft, World
from steelyard.agents.groupmembench.readers import ABSTAINS
from steelyard.agents.groupmembench.reading import correct, read

TYPES = ("multi_hop", "knowledge_update", "temporal", "user_implicit", "term_ambiguity", "abstention")
_VARIANTS = 21  # wordings and askers drawn per question; more than any adversarial search may try

WORDINGS: dict[str, tuple[str, ...]] = {
    "value": (
        "What is the current {topic} for {alias} in {phase}?",
        "In {phase}, which {topic} does {alias} follow at present?",
        "What {topic} applies to {alias} as of today in {phase}?",
    ),
    "status": (
        "What is the status of {alias} in {phase}?",
        "In {phase}, how far is {alias}?",
        "Which status does {alias} have in {phase}?",
    ),
    "owner": ("Who owns {alias} in {phase}?", "Who is the owner of {alias} in {phase}?"),
    "deadline": ("What is the deadline of {alias} in {phase}?", "In {phase}, what date is the deadline for {alias}?"),
    "blocker": (
        "Which blocker did I flag for {alias} in {phase}, what am I waiting for?",
        "In {phase}, which blocker did I say I am waiting for with {alias}?",
        "What is my blocker on {alias} in {phase}, what am I waiting for?",
    ),
    "commitment": (
        "By which date was the {topic} for {alias} promised in {phase}?",
        "In {phase}, when will the {topic} for {alias} be done?",
        "What is the due date of the {topic} that was promised for {alias} in {phase}?",
    ),
    "path": (
        "Which path was given to the {role} who asked for the {topic} of {alias} in {phase}?",
        "In {phase}, what location did the {role} get for the {topic} of {alias}?",
        "Which file answered the question of the {role} about {alias} and its {topic} in {phase}?",
    ),
    "detail": (
        "What is the exact {topic} of {alias} in {phase}?",
        "In {phase}, which {topic} was noted for {alias}?",
        "Do we know the {topic} for {alias} in {phase}, and what is it?",
    ),
}


@dataclass(frozen=True)
class Asked:
    """A question in one wording; ``gold`` and ``hard`` are ids of evidence and of what looks like it."""

    type: str
    question: str
    answer: str
    asker: str
    gold: tuple[str, ...]
    hard: tuple[str, ...]


class Scene:
    """Drafts found by kind, entity and phase."""

    def __init__(self, world: World, drafts: Sequence[Draft], texts: Mapping[str, str]) -> None:
        self.world, self.texts, self.drafts = world, texts, drafts
        self._by: dict[tuple[str, int, str], list[Draft]] = {}
        for draft in drafts:
            self._by.setdefault((draft.event.kind, draft.event.entity, draft.event.phase), []).append(draft)
        self.pairs = sorted({(draft.event.entity, draft.event.phase) for draft in drafts if draft.event.kind == "root"})

    def find(self, kind: str, entity: int, phase: str) -> list[Draft]:
        """Return the drafts of a kind about an entity in a phase, earliest first."""
        return self._by.get((kind, entity, phase), [])

    def ids(self, kinds: Iterable[str], entity: int, phase: str) -> tuple[str, ...]:
        """Return the ids of all drafts of some kinds."""
        return tuple(draft.id for kind in kinds for draft in self.find(kind, entity, phase))

    def elsewhere(self, kind: str, entity: int, phase: str) -> tuple[str, ...]:
        """Return ids of the same kind in the same phase about other things."""
        return tuple(
            draft.id
            for draft in self.drafts
            if draft.event.kind == kind and draft.event.phase == phase and draft.event.entity != entity
        )

    def wordings(
        self, key: str, entity: int, phase: str, askers: Sequence[int], own: bool = False, **words: str
    ) -> list[tuple[str, str]]:
        """Return (question, asker) pairs, drawn anew each time, in the common name or in the asker's ``own`` word."""
        generator, found = self.world.generator, list[tuple[str, str]]()
        for _ in range(_VARIANTS):
            persona = self.world.personas[askers[int(generator.integers(len(askers)))]]
            wording = WORDINGS[key][int(generator.integers(len(WORDINGS[key])))]
            alias = persona.aliases[entity] if own else self.world.names[entity]
            found.append((wording.format(alias=alias, phase=phase, **words), persona.user))
        return list(dict.fromkeys(found))


Variants = list[Asked]


def _variants(
    kind: str, pairs: list[tuple[str, str]], answer: str, gold: Sequence[Draft], hard: tuple[str, ...]
) -> Variants:
    ids = tuple(draft.id for draft in gold)
    return [Asked(kind, question, answer, asker, ids, hard) for question, asker in pairs]


def ask_knowledge_update(scene: Scene, entity: int, phase: str) -> Variants:
    """Ask for what holds after a change; the old decision, options and restatements are nearer in words."""
    change = scene.find("change", entity, phase)[0]
    pairs = scene.wordings("value", entity, phase, _others(scene, change), topic=change.event.topic)
    hard = scene.ids(("proposal", "option", "decision", "restatement"), entity, phase)
    return _variants("knowledge_update", pairs, change.event.value, [change], hard)


def ask_term_ambiguity(scene: Scene, entity: int, phase: str) -> Variants:
    """Ask for status, owner or deadline in a name that the answering message does not use."""
    told = [kind for kind in ("status", "owner", "deadline") if scene.find(kind, entity, phase)]
    if not told:
        return []
    kind = told[int(scene.world.generator.integers(len(told)))]
    gold = scene.find(kind, entity, phase)[0]
    personas = scene.world.personas
    askers = [number for number in _others(scene, gold) if personas[number].aliases[entity] != gold.event.alias]
    if not askers:
        return []
    word = personas[askers[int(scene.world.generator.integers(len(askers)))]].aliases[entity]
    askers = [number for number in askers if personas[number].aliases[entity] == word]
    pairs = scene.wordings(kind, entity, phase, askers, own=True)
    return _variants("term_ambiguity", pairs, gold.event.value, [gold], scene.elsewhere(kind, entity, phase))


def ask_user_implicit(scene: Scene, entity: int, phase: str) -> Variants:
    """Ask in the first person for a blocker that the asker told; another user told another one."""
    told = scene.find("blocker", entity, phase)
    if not told:
        return []
    gold = told[int(scene.world.generator.integers(len(told)))]
    pairs = scene.wordings("blocker", entity, phase, [gold.speaker])
    hard = tuple(draft.id for draft in told if draft is not gold)
    return _variants("user_implicit", pairs, gold.event.value, [gold], hard)


def ask_temporal(scene: Scene, entity: int, phase: str) -> Variants:
    """Ask for a promised date; a wished one and a deadline stand beside it."""
    gold = scene.find("commitment", entity, phase)[0]
    pairs = scene.wordings("commitment", entity, phase, _others(scene, gold), topic=gold.event.topic)
    return _variants("temporal", pairs, gold.event.value, [gold], scene.ids(("request", "deadline"), entity, phase))


def ask_multi_hop(scene: Scene, entity: int, phase: str) -> Variants:
    """Ask for the path that somebody's question got as its answer: two messages, joined by a reply."""
    gold = scene.find("path", entity, phase)[0]
    asked = scene.find("ask_path", entity, phase)[0]
    role = scene.world.personas[asked.speaker].role
    pairs = scene.wordings("path", entity, phase, _others(scene, gold), topic=gold.event.topic, role=role)
    return _variants("multi_hop", pairs, gold.event.value, [gold, asked], scene.elsewhere("path", entity, phase))


def ask_abstention(scene: Scene, entity: int, phase: str) -> Variants:
    """Ask for a detail that nobody told of this entity in this phase, though of others somebody did."""
    told = {draft.event.topic for draft in scene.find("detail", entity, phase)}
    missing = [kind for kind in DETAILS if kind not in told]
    topic = missing[int(scene.world.generator.integers(len(missing)))]
    every = list(range(len(scene.world.personas)))
    pairs = scene.wordings("detail", entity, phase, every, topic=topic)
    hard = tuple(draft.id for draft in scene.drafts if draft.event.kind == "detail" and draft.event.topic == topic)
    return _variants("abstention", pairs, ABSTAINS, [], hard)


ASK: dict[str, Callable[[Scene, int, str], Variants]] = {
    "multi_hop": ask_multi_hop,
    "knowledge_update": ask_knowledge_update,
    "temporal": ask_temporal,
    "user_implicit": ask_user_implicit,
    "term_ambiguity": ask_term_ambiguity,
    "abstention": ask_abstention,
}


def candidates(world: World, drafts: Sequence[Draft], texts: Mapping[str, str], per_type: int) -> list[Variants]:
    """Return the variants of up to ``per_type`` solvable questions of each type, types in turn.

    Solvable: the reader, given the gold evidence alone, answers right with every variant kept.
    """
    scene = Scene(world, drafts, texts)
    wrote = {world.personas[draft.speaker].user for draft in drafts}  # nobody else is known to the chat
    found = []
    for kind in TYPES:
        order = world.generator.permutation(len(scene.pairs))
        chosen: list[Variants] = []
        for place in order.tolist():
            if len(chosen) == per_type:
                break
            variants = ASK[kind](scene, *scene.pairs[place])
            kept = [one for one in variants if one.asker in wrote and solvable(one, texts)]
            if kept:
                chosen.append(kept)
        found += chosen
    return found


def solvable(one: Asked, texts: Mapping[str, str]) -> bool:
    """Return whether the reader answers right from the gold evidence."""
    return correct(read(one.question, [texts[name] for name in one.gold]), one.answer)


def _others(scene: Scene, gold: Draft) -> list[int]:
    """Return all users but the one who said it."""
    return [number for number in range(len(scene.world.personas)) if number != gold.speaker]
