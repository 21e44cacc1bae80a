"""Generated group chats: a graph of events, speakers with words of their own, questions with gold evidence.

Reconstruction after the paper's abstract (graph-grounded synthesis, personas, audiences, adversarial queries); no
language model is needed. The shipped chat keeps the contract of :data:`VERSION`: changes of a decision carry no cue
word and half of them stand in another thread, nobody explains an alias, a phase is named in roots only, and the old
decision is restated after its change. ``hardness="easy"`` breaks all of these and is circular: it uses the cues that a
structured memory looks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from steelyard import rng
from steelyard.agents.groupmembench.adversary import Attacker, default_attackers, hardest
from steelyard.agents.groupmembench.asking import Asked, candidates
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.ontology import CHANNELS, DOMAINS, PHASES
from steelyard.agents.groupmembench.plot import (
    START,
    Draft,
    Hardness,
    Settings,
    World,
    deal,
    glossary,
    make_world,
    plot_phase,
)
from steelyard.agents.groupmembench.questions import Question
from steelyard.agents.groupmembench.realise import Realiser, checked, template_text
from steelyard.errors import InputError

VERSION = "1.0"
"""Version of the shipped generator; any change of what it writes gives another one."""

PHASE_DAYS = 6.5
_LIMITS = {
    "users": (2, 200),
    "channels": (1, len(CHANNELS)),
    "phases": (1, len(PHASES)),
    "messages_per_phase": (20, 2000),
}


@dataclass(frozen=True)
class GeneratedChat:
    """A chat, what can be asked of it, and which generator made it.

    Attributes:
        chat: The messages; each carries its ``truth``, which memories must not see: :meth:`public` takes it away.
        questions: With gold and hard negative ids; an abstention question has no gold ids.
        aliases: Entity -> role -> its name for it.
        version: Version and hardness of the generator.
        fallbacks: Texts of a user's realiser that missed their fact and were replaced by a template.
    """

    chat: GroupChat
    questions: tuple[Question, ...]
    aliases: Mapping[str, Mapping[str, str]]
    version: str
    fallbacks: int = 0

    def public(self) -> tuple[Message, ...]:
        """Return the messages without any label."""
        return tuple(replace(message, truth=None) for message in self.chat.messages)


def generate_group_chat(
    seed: int = 0,
    *,
    domain: str = "finance",
    users: int = 13,
    channels: int = 4,
    phases: int = 6,
    messages_per_phase: int = 40,
    p_chain: float = 0.55,
    p_branch: float = 0.25,
    noise: float = 0.15,
    hardness: Hardness = "shipped",
    realise: Realiser | None = None,
    adversarial_iters: int = 5,
    attackers: Sequence[Callable[[Sequence[Message]], Attacker]] | None = None,
    questions_per_type: int = 24,
    root: str = "evaluation",
) -> GeneratedChat:
    """Return a chat with questions of six types and their gold evidence; equal arguments give equal chats.

    Args:
        seed: Which chat.
        domain: ``finance``, ``technology``, ``healthcare`` or ``manufacturing``.
        users: Speakers.
        channels: Channels, that is projects.
        phases: Phases, one after the other in every channel.
        messages_per_phase: Messages of one channel in one phase; the stories need about 17 each.
        p_chain: How often a message answers the newest of its story.
        p_branch: How often it answers an older one; else it answers none.
        noise: Least share of chatter.
        hardness: ``shipped``, or ``easy``: the circular chat, which only shows what each part of a memory does.
        realise: A writer of yours, such as a language model; a text without its fact is replaced by the template's.
        adversarial_iters: Further wordings and askers tried per question; the one that most attackers miss is kept.
        attackers: Functions from messages to an attacker; BM25 and hashed n-grams when None.
        questions_per_type: At most so many questions of each type.
        root: Root of the random streams.

    Raises:
        InputError: An argument is out of its range, or ``realise`` returns no text.
    """
    settings = Settings(domain, users, channels, phases, messages_per_phase, p_chain, p_branch, noise, hardness)
    _check(settings, adversarial_iters, questions_per_type)
    generator = rng.generator(root, f"groupmembench/chat/{domain}/{hardness}", seed)
    world = make_world(settings, generator)
    drafts = _draft(world)
    messages, fallbacks = _write(world, drafts, realise)
    texts = {message.id: message.content for message in messages}
    asked = candidates(world, drafts, texts, questions_per_type)
    makers = default_attackers() if attackers is None else attackers
    shuffled = [messages[int(place)] for place in generator.permutation(len(messages))]  # attackers break ties by place
    chosen = hardest(asked, shuffled, makers, adversarial_iters)
    found = tuple(_question(number, one) for number, one in enumerate(chosen))
    aliases = {
        name: {one.role: one.aliases[number] for one in world.personas} for number, name in enumerate(world.names)
    }
    return GeneratedChat(GroupChat(messages), found, aliases, f"{VERSION}, {hardness}", fallbacks)


def _check(settings: Settings, iters: int, per_type: int) -> None:
    if settings.domain not in DOMAINS:
        raise InputError(f"domain must be one of {', '.join(DOMAINS)}, got {settings.domain!r}")
    if settings.hardness not in ("shipped", "easy"):
        raise InputError(f"hardness must be 'shipped' or 'easy', got {settings.hardness!r}")
    for name, (low, high) in _LIMITS.items():
        if not low <= getattr(settings, name) <= high:
            raise InputError(f"{name} must be from {low} to {high}, got {getattr(settings, name)}")
    shares = settings.p_chain, settings.p_branch, settings.noise
    if min(shares) < 0 or settings.p_chain + settings.p_branch > 1 or settings.noise > 0.9:
        raise InputError(
            "p_chain, p_branch and noise must be 0 or more, p_chain + p_branch at most 1, noise at most 0.9"
        )
    if not 0 <= iters <= 20:
        raise InputError(f"adversarial_iters must be from 0 to 20, got {iters}")
    if not 1 <= per_type <= 1000:
        raise InputError(f"questions_per_type must be from 1 to 1000, got {per_type}")


def _draft(world: World) -> list[Draft]:
    """Return the drafts of the whole chat with ids that say nothing of their order."""
    drafts = [] if world.settings.hardness == "shipped" else glossary(world)
    for number, dealt in enumerate(deal(world)):
        for channel, entities in enumerate(dealt):
            for draft in plot_phase(world, PHASES[number], entities):
                draft.channel, draft.phase_number = CHANNELS[channel], number
                drafts.append(draft)
    codes = world.generator.choice(16**6, len(drafts), replace=False)
    for draft, code in zip(drafts, codes.tolist(), strict=True):
        draft.id = f"m{code:06x}"
    return drafts


def _write(world: World, drafts: Sequence[Draft], realise: Realiser | None) -> tuple[list[Message], int]:
    """Return the messages, their times with exponential gaps within channel and phase, and how many texts fell back."""
    messages, fallbacks = [], 0
    clock: dict[tuple[str, int], datetime] = {}
    sizes = Counter((draft.channel, draft.phase_number) for draft in drafts)
    history: dict[str, list[str]] = {}
    for draft in drafts:
        cell = draft.channel, draft.phase_number
        began = START + timedelta(days=PHASE_DAYS * draft.phase_number)
        gap = timedelta(days=float(world.generator.exponential(0.9 * PHASE_DAYS / sizes[cell])), microseconds=1)
        clock[cell] = clock.get(cell, began) + gap
        persona = world.personas[draft.speaker]
        text = template_text(draft.event, persona, world.generator, world.settings.hardness == "easy")
        if realise is not None:
            own = checked(
                realise(draft.event, persona, draft.audience, history.get(draft.channel, [])[-10:]), draft.event
            )
            fallbacks += own is None
            text = own or text
        history.setdefault(draft.channel, []).append(text)
        messages.append(_message(draft, persona.user, persona.role, text, clock[cell]))
    return messages, fallbacks


def _message(draft: Draft, user: str, role: str, text: str, when: datetime) -> Message:
    event = draft.event
    return Message(
        id=draft.id,
        content=text,
        author=user,
        channel=draft.channel,
        timestamp=when,
        reply_to=None if draft.parent is None else draft.parent.id,
        role=role,
        phase=event.phase,
        truth={"event": event.kind, "entity": event.entity, "value": event.value, "supersedes": event.old},
    )


def _question(number: int, one: Asked) -> Question:
    return Question(
        id=f"q{number}", type=one.type, question=one.question, answer=one.answer, asking_user_id=one.asker,
        gold_ids=one.gold, hard_negative_ids=one.hard,
    )  # fmt: skip
