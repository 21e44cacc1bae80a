"""Household games made here: the rules of the official ones, rooms and tasks drawn at random; they need no download.

The rooms are smaller and plainer than the official ones (reconstruction): 8 to 15 receptacles, each at a place of its
own, and one to three objects of each type. The walkthrough is made with the game.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steelyard import rng
from steelyard.errors import InputError, did_you_mean
from steelyard.policy.household.game import KINDS, HouseholdGame
from steelyard.policy.household.rules import spoken

_CLOSED = ("cabinet", "drawer", "fridge", "microwave")
_MANY = ("cabinet", "drawer", "shelf", "countertop", "diningtable", "sidetable")
_ONCE = ("fridge", "microwave", "sinkbasin", "garbagecan", "desk", "coffeemachine")
_NAMES = {"sinkbasin": ("sink", "sinkbasin")}  # its id has the base of the sink
_FOOD = ("apple", "bread", "egg", "lettuce", "potato", "tomato")
_WARE = ("bowl", "cup", "mug", "plate", "pan", "pot")
_TOOLS = ("fork", "spoon", "spatula", "butterknife", "dishsponge")
_THINGS = ("book", "candle", "cellphone", "creditcard", "keychain", "newspaper", "pencil", "remotecontrol", "vase")
_FITS = {
    "microwave": (*_FOOD, "bowl", "cup", "mug", "plate"),
    "fridge": (*_FOOD, *_WARE),
    "sinkbasin": (*_FOOD, *_WARE, *_TOOLS),
    "coffeemachine": ("mug",),
}
_HEATABLE = ("apple", "bread", "egg", "potato", "tomato", "cup", "mug", "plate")
_COOLABLE = (*_FOOD, *_WARE)
_CLEANABLE = (*_FOOD, *_WARE, *_TOOLS)
_TRANSFORMS = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin", _CLEANABLE, "isclean", "cleanable"),
    "pick_heat_then_place_in_recep": ("heat", "microwave", _HEATABLE, "ishot", "heatable"),
    "pick_cool_then_place_in_recep": ("cool", "fridge", _COOLABLE, "iscool", "coolable"),
}


def generate_games(n: int, seed: int = 0, kinds: Sequence[str] | None = None) -> list[HouseholdGame]:
    """Return ``n`` games; the kinds take turns.

    Args:
        n: How many, at least 1.
        seed: Equal seeds give equal games, and the first ones do not depend on ``n``.
        kinds: Of the six kinds of tasks; None: all.

    Raises:
        InputError: ``n`` is no number of at least 1, or a kind is not known.
    """
    if not isinstance(n, int) or n < 1:
        raise InputError(f"n must be a whole number of at least 1, got {n!r}")
    chosen = tuple(kinds or KINDS)
    for kind in chosen:
        if kind not in KINDS:
            raise InputError(f"kinds: '{kind}' is not known; there are {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    return [
        _game(chosen[number % len(chosen)], number, rng.generator("household", f"game {number}", seed))
        for number in range(n)
    ]


class _Room:
    """A room that is being furnished: ids of receptacles and objects, and where each object lies."""

    def __init__(self, stream: np.random.Generator) -> None:
        self.stream = stream
        kinds = [*_ONCE]
        while len(kinds) < int(stream.integers(8, 16)):
            kinds.append(_MANY[int(stream.integers(len(_MANY)))])
        self.receptacles = sorted(
            self._id(_NAMES.get(kind, (kind, ""))[0], _NAMES.get(kind, ("", ""))[1]) for kind in kinds
        )
        self.objects: list[str] = []
        self.lies: dict[str, str] = {}

    def _id(self, name: str, more: str = "") -> str:
        numbers = [
            f"_bar__plus_0{value // 100}_dot_{value % 100:02d}" for value in self.stream.integers(0, 1000, 3).tolist()
        ]
        return name + "".join(numbers) + (f"_bar_{more}" if more else "")

    def of(self, kind: str) -> list[str]:
        """Return the receptacles of a kind."""
        return [place for place in self.receptacles if kind_of(place) == kind]

    def add(self, kind: str, without: str = "") -> str:
        """Put an object of a kind somewhere that holds it and is not of the kind ``without``."""
        places = [place for place in self.receptacles if holds(kind_of(place), kind) and kind_of(place) != without]
        thing = self._id(kind)
        self.objects.append(thing)
        self.lies[thing] = places[int(self.stream.integers(len(places)))]
        return thing


def kind_of(name: str) -> str:
    """Return the type of a thing by its id, without "type"."""
    return "sinkbasin" if "sinkbasin" in name else name.partition("_bar_")[0]


def holds(receptacle: str, thing: str) -> bool:
    """Say whether a receptacle of one type takes objects of another."""
    return receptacle not in _FITS or thing in _FITS[receptacle]


def _game(kind: str, number: int, stream: np.random.Generator) -> HouseholdGame:
    room = _Room(stream)
    transform = _TRANSFORMS.get(kind)
    pool = transform[2] if transform else (*_FOOD, *_WARE, *_TOOLS, *_THINGS)
    target = pool[int(stream.integers(len(pool)))]
    goals = sorted(
        {kind_of(place) for place in room.receptacles if holds(kind_of(place), target)}
        - {transform[1] if transform else ""}
    )
    goal = goals[int(stream.integers(len(goals)))]
    count = 2 if kind == "pick_two_obj_and_place" else 1
    wanted = [room.add(target, goal) for _ in range(count)]
    if kind == "look_at_obj_in_light":
        lamp = room.add("desklamp", "garbagecan")
        while kind_of(room.lies[lamp]) in (*_CLOSED, "sinkbasin", "coffeemachine"):
            lamp = _moved(room, lamp)
    others = [name for name in (*_FOOD, *_WARE, *_TOOLS, *_THINGS) if name != target]
    for name in stream.permutation(others)[:8].tolist():
        for _ in range(int(stream.integers(1, 3))):
            room.add(str(name))
    task, goal_text = _task(kind, target, goal, stream)
    plan = _plan(room, kind, wanted, goal)
    return HouseholdGame(
        f"{kind}-{target}-None-{goal}-generated",
        f"game_{number}",
        task,
        _problem(room, goal_text),
        tuple(plan),
        "generated",
    )


def _moved(room: _Room, thing: str) -> str:
    room.lies[thing] = room.receptacles[int(room.stream.integers(len(room.receptacles)))]
    return thing


def _task(kind: str, target: str, goal: str, stream: np.random.Generator) -> tuple[str, str]:
    """Return the task's sentence in one of its two wordings, and the goal."""
    first = bool(stream.integers(2))
    typed = f"(objecttype ?o {target}type) (receptacletype ?r {goal}type)"
    if kind in _TRANSFORMS:
        verb, _, _, fact, can = _TRANSFORMS[kind]
        state = {"clean": "clean", "heat": "hot", "cool": "cool"}[verb]
        sentence = f"{verb} some {target} and put it in {goal}." if first else f"put a {state} {target} in {goal}."
        return sentence, _exists(f"({can} ?o) {typed} ({fact} ?o) (inreceptacle ?o ?r)")
    if kind == "pick_two_obj_and_place":
        sentence = f"find two {target} and put them in {goal}." if first else f"put two {target} in {goal}."
        second = f"(objecttype ?o2 {target}type) (receptacletype ?r {goal}type) (inreceptacle ?o2 ?r)"
        return sentence, _exists(
            f"{typed} (inreceptacle ?o ?r) (exists (?o2 - object) (and (not (= ?o ?o2)) {second}))"
        )
    if kind == "look_at_obj_in_light":
        sentence = f"look at {target} under the desklamp." if first else f"examine the {target} with the desklamp."
        lamp = "(objecttype ?ot desklamptype) (toggleable ?ot) (istoggled ?ot) (receptacleatlocation ?r ?l)"
        return sentence, (
            f"(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and {lamp} (atlocation ?a ?l) "
            f"(inreceptacle ?ot ?r))) (exists (?o - object ?a - agent) (and (objecttype ?o {target}type) (holds "
            f"?a ?o))))"
        )
    return (f"put a {target} in {goal}." if first else f"put some {target} on {goal}."), _exists(
        f"{typed} (inreceptacle ?o ?r)"
    )


def _exists(body: str) -> str:
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {body}))))"


def _plan(room: _Room, kind: str, wanted: list[str], goal: str) -> list[str]:
    """Return commands that win."""
    named = dict(zip(sorted(room.objects), spoken(sorted(room.objects)), strict=True))
    named.update(zip(room.receptacles, spoken(room.receptacles), strict=True))
    opened: set[str] = set()
    plan: list[str] = []
    there = ""

    def go(place: str, inside: bool) -> None:
        nonlocal there
        if place != there:
            plan.append(f"go to {named[place]}")
            there = place
        if inside and kind_of(place) in _CLOSED and place not in opened:
            opened.add(place)
            plan.append(f"open {named[place]}")

    for thing in wanted:
        go(room.lies[thing], inside=True)
        plan.append(f"take {named[thing]} from {named[room.lies[thing]]}")
        if kind == "look_at_obj_in_light":
            lamp = next(name for name in room.objects if kind_of(name) == "desklamp")
            go(room.lies[lamp], inside=True)
            plan.append(f"use {named[lamp]}")
            return plan
        if kind in _TRANSFORMS:
            verb, appliance = _TRANSFORMS[kind][:2]
            place = room.of(appliance)[0]
            go(place, inside=False)
            plan.append(f"{verb} {named[thing]} with {named[place]}")
        end = room.of(goal)[0]
        go(end, inside=True)
        plan.append(f"move {named[thing]} to {named[end]}")
    return plan


def _problem(room: _Room, goal: str) -> str:
    """Return the problem in PDDL."""
    types = sorted({kind_of(thing) for thing in room.objects})
    facts = ["(atlocation agent1 loc_start)"]
    for place in room.receptacles:
        kind = kind_of(place)
        facts += [f"(receptacletype {place} {kind}type)", f"(receptacleatlocation {place} loc_{place})"]
        facts += [f"(openable {place})"] if kind in _CLOSED else []
    facts += [
        f"(cancontain {kind}type {thing}type)"
        for kind in sorted({kind_of(place) for place in room.receptacles})
        for thing in types
        if holds(kind, thing)
    ]
    for thing in room.objects:
        kind, place = kind_of(thing), room.lies[thing]
        facts += [
            f"(objecttype {thing} {kind}type)",
            f"(inreceptacle {thing} {place})",
            f"(objectatlocation {thing} loc_{place})",
        ]
        if kind == "desklamp":
            facts.append(f"(toggleable {thing})")
            continue
        facts.append(f"(pickupable {thing})")
        abilities = (
            ("cleanable", _CLEANABLE), ("heatable", _HEATABLE), ("coolable", _COOLABLE), ("sliceable", _FOOD),
            ("isreceptacleobject", _WARE),
        )  # fmt: skip
        facts += [f"({ability} {thing})" for ability, those in abilities if kind in those]
    objects = "".join(f"{thing} - object " for thing in room.objects)
    receptacles = "".join(f"{place} - receptacle " for place in room.receptacles)
    places = "".join(f"loc_{place} - location " for place in room.receptacles)
    return (
        f"(define (problem generated) (:domain alfred) (:objects agent1 - agent loc_start - location "
        f"{objects}{receptacles}"
        f"{places}) (:init {' '.join(facts)}) (:goal {goal}))"
    )
