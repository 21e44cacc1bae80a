"""Playing a household game: the calls of gymnasium, with commands and observations that are text."""

from __future__ import annotations

from collections.abc import Hashable
from copy import copy
from typing import Any, NamedTuple

from steelyard.errors import InputError
from steelyard.policy.advantages import check_number
from steelyard.policy.household.game import HouseholdGame
from steelyard.policy.household.rules import Rules, listed

NOTHING = "Nothing happens."
HELP = (
    "Commands: look, inventory, go to (receptacle), open (receptacle), close (receptacle), "
    "take (object) from (receptacle), move (object) to (receptacle), examine (something), use (object), "
    "heat, clean or cool (object) with (receptacle), slice (object) with (object)."
)
"""Reconstruction: the games' own text lists the same commands, one a line."""
_APPLIANCES = {
    "microwavetype": ("heat", "heatable"),
    "sinkbasintype": ("clean", "cleanable"),
    "sinktype": ("clean", "cleanable"),
    "fridgetype": ("cool", "coolable"),
}
_ROOM = "You are in the middle of a room. Looking quickly around you, you see"
_KNIVES = ("knifetype", "butterknifetype")
_CHANGES = frozenset(("take", "move", "clean", "heat", "cool", "use"))
_MOST_CACHED = 20_000


class Act(NamedTuple):
    """What a command does: its verb, and the object and receptacle (or second object) that it names, -1 for none."""

    verb: str
    thing: int = -1
    place: int = -1


class HouseholdEnv:
    """One household game, after the rules of ALFWorld's text engine.

    The game is deterministic. ``info`` has ``admissible``, a sorted list of commands (made once a step; do not change
    it), ``task`` and ``won``. A command that is not admissible, or spelled in another way, does nothing; blanks
    around it do not matter.

    Args:
        game: The game.
        max_steps: Commands after which it is cut off (30; the paper has 50).
        reward: Given once, for the command that wins.
        strict: Raise for a command that is not admissible.
        slicing: Whether `slice` is offered.

    Raises:
        InputError: ``max_steps`` is not a whole number of at least 1.
    """

    def __init__(
        self,
        game: HouseholdGame,
        max_steps: int = 30,
        reward: float = 1.0,
        *,
        strict: bool = False,
        slicing: bool = True,
    ) -> None:
        if not isinstance(max_steps, int) or max_steps < 1:
            raise InputError(f"max_steps must be a whole number of at least 1, got {max_steps!r}")
        check_number("reward", reward)
        self.game, self.max_steps, self.reward, self.strict, self.slicing = game, max_steps, reward, strict, slicing
        self.rules: Rules = game.rules
        self._won = game.won
        self._begin()
        self.over = True  # until it is reset

    def __deepcopy__(self, memo: Any) -> HouseholdEnv:
        return self.copy()

    def copy(self) -> HouseholdEnv:
        """Return an environment in the same state that goes its own way; both share the game."""
        other = copy(self)
        other.contents, other.opened = list(self.contents), set(self.opened)
        other.lying, other.left = set(self.lying), set(self.left)
        other.facts = {name: set(objects) for name, objects in self.facts.items()}
        return other

    def _begin(self) -> None:
        rules = self.rules
        self.location, self.held, self.steps = rules.start, -1, 0
        self.contents = list(rules.contents)
        self.opened = set(rules.opened)
        self.facts = {name: set(objects) for name, objects in rules.facts.items()}
        self.lying = set(rules.lying)
        self.left: set[tuple[int, int]] = set()  # (object, receptacle) that it was taken from and not put back into
        self.won = self.over = False
        self.observation = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the overview of the room with the task, and ``info``; ``seed`` changes nothing."""
        self._begin()
        self.observation = f"{self._overview()}\n\nYour task is to: {self.game.task}"
        return self.observation, self._info()

    def step(self, command: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out a command.

        Returns:
            Observation, reward, whether the goal is reached, whether time ran out, ``info``.

        Raises:
            InputError: The episode has ended, or the command is not admissible and the environment is strict.
        """
        if self.over:
            raise InputError("the episode has ended; call reset() first")
        act = self._menu()[1].get(str(command).strip())
        if act is None:
            if self.strict:
                raise InputError(f"command '{str(command)[:80]}' is not admissible here")
            self.observation = NOTHING
        else:
            self.observation = self._do(act)
            if act.verb in _CHANGES:
                self.won = self._won(self)
        self.steps += 1
        truncated = not self.won and self.steps >= self.max_steps
        self.over = self.won or truncated
        return self.observation, self.reward if self.won else 0.0, self.won, truncated, self._info()

    def state_key(self, full: bool = False) -> Hashable:
        """Return what stands for the state when rollouts are grouped.

        Simulator state without any reward: the last observation, location, what is held, what is clean, hot, cool or
        toggled, and how many targets are placed; nearly Markov, since opened receptacles and moved objects are missing.
        ``full`` has every fact that a command can change, and no observation.
        """
        facts = tuple(tuple(sorted(self.facts[name])) for name in ("isclean", "ishot", "iscool", "istoggled"))
        if full:
            more = (tuple(self.contents), tuple(sorted(self.opened)), tuple(sorted(self.facts["issliced"])))
            moved = (tuple(sorted(self.lying ^ self.rules.lying)), tuple(sorted(self.left)))
            return (self.location, self.held, facts, *more, *moved)
        return (self.observation, self.location, self.held, facts, self.placed)

    @property
    def placed(self) -> int:
        """Objects of a type that the goal names which are in a receptacle of a type that it names."""
        things, receptacles = self.game.targets
        return len({thing for place in receptacles for thing in self.contents[place] if thing in things})

    def _info(self) -> dict[str, Any]:
        return {"admissible": self._menu()[0], "task": self.game.task, "won": self.won}

    def _here(self) -> tuple[int, ...]:
        rules = self.rules
        cached = rules.menus.get(self.location)
        if cached is None:
            cached = tuple(place for place, spot in enumerate(rules.places) if spot == self.location)
            rules.menus[self.location] = cached
        return cached  # type: ignore[return-value]

    def _accessible(self, place: int) -> bool:
        return not self.rules.openable[place] or place in self.opened

    def _menu(self) -> tuple[list[str], dict[str, Act]]:
        """Return the admissible commands and what each does, from a memory shared by all who play the game."""
        here, rules = self._here(), self.rules
        held = self.held
        knife = self.slicing and held >= 0 and rules.object_types[held] in _KNIVES
        sliced = self._sliceable() if knife else ()
        key = (
            self.location,
            held,
            tuple([(place in self.opened, self.contents[place]) for place in here]),
            sliced,
            self.slicing,
        )
        menu = rules.menus.get(key)
        if menu is None:
            acts = self._acts(here, sliced)
            menu = (sorted(acts), acts)
            if len(rules.menus) > _MOST_CACHED:
                rules.menus.clear()
            rules.menus[key] = menu
        return menu  # type: ignore[return-value]

    def _sliceable(self) -> tuple[int, ...]:
        flagged = self.rules.flags["sliceable"]
        return tuple(sorted(thing for thing, spot in self.lying if spot == self.location and thing in flagged))

    def _acts(self, here: tuple[int, ...], sliced: tuple[int, ...]) -> dict[str, Act]:
        rules, held = self.rules, self.held
        names, things = rules.receptacle_names, rules.object_names
        acts = {"look": Act("look"), "inventory": Act("inventory"), "help": Act("help")}
        for place, spot in enumerate(rules.places):
            if spot != self.location:
                acts[f"go to {names[place]}"] = Act("go", place=place)
        for place in here:
            acts[f"examine {names[place]}"] = Act("examine", place=place)
            if rules.openable[place]:
                verb = "close" if place in self.opened else "open"
                acts[f"{verb} {names[place]}"] = Act(verb, place=place)
            if self._accessible(place):
                self._reachable(place, acts)
            appliance = _APPLIANCES.get(rules.receptacle_types[place])
            if held >= 0 and appliance is not None and held in rules.flags[appliance[1]]:
                acts[f"{appliance[0]} {things[held]} with {names[place]}"] = Act(appliance[0], held, place)
        if held >= 0:
            acts[f"examine {things[held]}"] = Act("examine", thing=held)
        for thing in sliced:
            acts[f"slice {things[thing]} with {things[held]}"] = Act("slice", thing, held)
        return acts

    def _reachable(self, place: int, acts: dict[str, Act]) -> None:
        rules, held = self.rules, self.held
        name, things = rules.receptacle_names[place], rules.object_names
        for thing in self.contents[place]:
            if held < 0 and thing in rules.flags["pickupable"]:
                acts[f"take {things[thing]} from {name}"] = Act("take", thing, place)
            if thing in rules.flags["toggleable"]:
                acts[f"use {things[thing]}"] = Act("use", thing, place)
        if held >= 0 and (rules.receptacle_types[place], rules.object_types[held]) in rules.fits:
            acts[f"move {things[held]} to {name}"] = Act("move", held, place)

    def _do(self, act: Act) -> str:
        return str(getattr(self, f"_{act.verb}")(act))

    def _name(self, act: Act) -> tuple[str, str]:
        rules = self.rules
        return rules.object_names[act.thing], rules.receptacle_names[act.place]

    def _go(self, act: Act) -> str:
        self.location = self.rules.places[act.place]
        return f"You arrive at {self.rules.receptacle_names[act.place]}. {self._contents_text(act.place)}"

    def _open(self, act: Act) -> str:
        self.opened.add(act.place)
        return f"You open the {self.rules.receptacle_names[act.place]}. {self._contents_text(act.place)}"

    def _close(self, act: Act) -> str:
        self.opened.discard(act.place)
        return f"You close the {self.rules.receptacle_names[act.place]}."

    def _take(self, act: Act) -> str:
        self.contents[act.place] = tuple(thing for thing in self.contents[act.place] if thing != act.thing)
        self.held = act.thing
        self.lying.discard((act.thing, self.location))
        self.left.add((act.thing, act.place))
        return "You pick up the {} from the {}.".format(*self._name(act))

    def _move(self, act: Act) -> str:
        self.contents[act.place] = tuple(sorted({*self.contents[act.place], act.thing}))
        self.held = -1
        self.lying.add((act.thing, self.location))
        self.left.discard((act.thing, act.place))
        return "You move the {} to the {}.".format(*self._name(act))

    def _clean(self, act: Act) -> str:
        return self._changed(act, "clean", "isclean")

    def _heat(self, act: Act) -> str:
        self.facts["iscool"].discard(act.thing)
        return self._changed(act, "heat", "ishot")

    def _cool(self, act: Act) -> str:
        self.facts["ishot"].discard(act.thing)
        return self._changed(act, "cool", "iscool")

    def _changed(self, act: Act, verb: str, fact: str) -> str:
        self.facts[fact].add(act.thing)
        return "You {} the {} using the {}.".format(verb, *self._name(act))

    def _use(self, act: Act) -> str:
        self.facts["istoggled"].add(act.thing)
        return f"You turn on the {self.rules.object_names[act.thing]}."

    def _slice(self, act: Act) -> str:
        self.facts["issliced"].add(act.thing)
        return f"You sliced the {self.rules.object_names[act.thing]} with the {self.rules.object_names[act.place]}."

    def _examine(self, act: Act) -> str:
        return self._contents_text(act.place) if act.place >= 0 else self._object_text(act.thing)

    def _inventory(self, _: Act) -> str:
        if self.held < 0:
            return "You are not carrying anything."
        return f"You are carrying: a {self.rules.object_names[self.held]}."

    def _help(self, _: Act) -> str:
        return HELP

    def _look(self, _: Act) -> str:
        rules, here = self.rules, self._here()
        if not here:  # as the games' engine: it looks for the receptacles at this place, and there is none
            return f"{_ROOM} nothing."
        names = [rules.receptacle_names[place] for place in here]
        facing = names[0] if len(names) == 1 else ", ".join(names[:-1]) + f", and {names[-1]}"
        # As the games' engine: what lies here and was taken out of another receptacle here counts as next to it.
        beside = [
            rules.object_names[thing]
            for thing, place in sorted(self.left)
            if place in here and (thing, self.location) in self.lying
        ]
        return f"You are facing the {facing}. Next to it, you see {listed(beside)}."

    def _overview(self) -> str:
        cached = self.rules.texts.get("overview")
        if cached is None:
            seen = listed(self.rules.receptacle_names)
            cached = f"{_ROOM} {seen}."
            self.rules.texts["overview"] = cached
        return cached

    def _contents_text(self, place: int) -> str:
        rules = self.rules
        name = rules.receptacle_names[place]
        if not self._accessible(place):
            return f"The {name} is closed."
        key = (place, self.contents[place])
        text = rules.texts.get(key)
        if text is None:
            seen = listed(rules.object_names[thing] for thing in self.contents[place])
            start = f"The {name} is open. In it" if rules.openable[place] else f"On the {name}"
            text = f"{start}, you see {seen}."
            if len(rules.texts) > _MOST_CACHED:
                rules.texts.clear()
            rules.texts[key] = text
        return text

    def _object_text(self, thing: int) -> str:
        """Return what the first rule of the games' grammar that fits says of an object."""
        rules, name = self.rules, self.rules.object_names[thing]
        if thing in rules.flags["isreceptacleobject"]:
            inside = listed(rules.object_names[inner] for inner in rules.inner.get(thing, ()))
            return f"This is a normal {name}. In it, you see {inside}."
        clean, hot, cool, sliced, toggled = (
            thing in self.facts[fact] for fact in ("isclean", "ishot", "iscool", "issliced", "istoggled")
        )
        warmth = "hot" if hot else ("cool" if cool else "")
        if clean and warmth:
            return f"This is a {warmth} and clean {'sliced ' if sliced else ''}{name}."
        if sliced and (clean or warmth):
            return f"This is a {'clean' if clean else warmth} sliced {name}."
        if clean or warmth:
            return f"This is a {'clean' if clean else ('cold' if cool else warmth)} {name}."
        if thing in rules.flags["toggleable"]:
            return f"This {name} is {'on' if toggled else 'off'}."
        return f"This is a sliced {name}." if sliced else f"There's nothing special about {name}."
