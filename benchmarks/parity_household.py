"""Play the household games beside ALFWorld's own engine: every text, every list of commands, every win.

Needs what steelyard does not: pip install alfworld (its planner is compiled: cmake, g++, make). Half of the games are
played by their walkthrough, with looks in between, half at random with a liking for taking, moving and slicing. The
engine's text of "help" is left out, and its line of welcome.

Run: STEELYARD_DATA_MIRROR=… python benchmarks/parity_household.py [--games 60] [--steps 40]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import receipt

from steelyard.data.cache import locate
from steelyard.policy import HouseholdEnv, load_household_games

try:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
except ImportError:
    raise SystemExit("ALFWorld's engine is not installed; install it with: pip install alfworld") from None

LIKED = {"go": 3.0, "take": 3.0, "move": 2.0, "look": 1.5, "open": 2.0, "close": 0.5, "slice": 3.0, "inventory": 0.3}
ODD = ("fly to the moon", "Look", "go  to bed 1", " look ")


def engine(game: Any, shared: dict[str, Any]) -> Any:
    """Return ALFWorld's engine with the game loaded."""
    parts = {
        "pddl_domain": shared["pddl_domain"],
        "grammar": shared["grammar"].replace("UNKNOWN GOAL.", game.task),
        "pddl_problem": game.pddl_problem,
        "walkthrough": list(game.walkthrough),
        "solvable": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "game.tw-pddl"
        path.write_text(json.dumps(parts))
        infos = textworld.EnvInfos(admissible_commands=True, won=True)
        return textworld.start(str(path), infos, wrappers=[AlfredDemangler()])


def drawn(draws: np.random.Generator, offered: list[str]) -> str:
    """Return a command: its verb by liking, then any of that verb; seldom one that is none."""
    if draws.random() < 0.03:
        return ODD[int(draws.integers(len(ODD)))]
    verbs: dict[str, list[str]] = {}
    for command in offered:
        verbs.setdefault(command.split()[0], []).append(command)
    del verbs["help"]
    weights = np.array([LIKED.get(verb, 1.0) for verb in verbs])
    chosen = verbs[list(verbs)[int(draws.choice(len(weights), p=weights / weights.sum()))]]
    return chosen[int(draws.integers(len(chosen)))]


def compare(game: Any, theirs: Any, steps: int, draws: np.random.Generator, found: Counter[str]) -> float:
    """Play both side by side, count in ``found`` what was compared and what differed; return the engine's seconds."""
    ours = HouseholdEnv(game, max_steps=steps + 1)
    plan = list(game.walkthrough) if draws.random() < 0.5 else []
    expert, seconds = bool(plan), 0.0
    state = theirs.reset()
    (text, info), answer = ours.reset(), state.feedback.split("\n\n", 1)[1]
    for step in range(steps + 1):
        differs = {
            "texts that differ": answer != text,
            "lists of commands that differ": sorted(set(state["admissible_commands"])) != info["admissible"],
            "wins that differ": bool(state["won"]) != info["won"],
        }
        found.update({what: int(yes) for what, yes in differs.items()})
        if any(differs.values()):
            print(game.name, game.trial, step, repr(answer), repr(text))
        if info["won"] or step == steps:
            break
        if expert and draws.random() < 0.7:
            command = plan.pop(0)
        else:
            command = drawn(draws, info["admissible"])
            command = "look" if expert and command.split()[0] not in ("inventory", "examine") else command
        found.update(["steps", f"of them {command.split()[0]}"] if command not in ODD else ["steps", "of them odd"])
        start = time.process_time()
        state = theirs.step(command)[0]
        seconds += time.process_time() - start
        answer, (text, _, _, _, info) = state.feedback, ours.step(command)
    found["games won"] += int(info["won"])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=60, help="drawn from all 874")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with lzma.open(locate("alfworld_games").paths[0]) as stream:
        shared = json.loads(stream.read())
    games = [game for split in ("train", "valid_seen", "valid_unseen") for game in load_household_games(split)]
    draws = np.random.default_rng(args.seed)
    found: Counter[str] = Counter()
    loading = playing = 0.0
    for place in draws.permutation(len(games))[: args.games].tolist():
        start = time.process_time()
        with contextlib.closing(engine(games[place], shared)) as theirs:
            loading += time.process_time() - start
            playing += compare(games[place], theirs, args.steps, draws, found)
        found["games"] += 1
    figures = {
        **dict(sorted(found.items())),
        "engine: seconds to load a game": loading / found["games"],
        "engine: steps a second": found["steps"] / playing,
        "versions": {name: version(name) for name in ("alfworld", "textworld", "fast_downward_textworld")},
    }
    print(json.dumps(figures, indent=1))
    print(receipt.write("parity_household", figures))


if __name__ == "__main__":
    main()
