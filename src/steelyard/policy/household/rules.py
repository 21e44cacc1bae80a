"""A household game without its state: what there is, what it is called, what may be done with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from steelyard.errors import InputError
from steelyard.policy.household.pddl import Expression, Problem

FLAGS = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject")
KNOWN = {
    *FLAGS,
    *("openable", "opened", "cancontain", "inreceptacle", "inreceptacleobject", "objectatlocation", "objecttype"),
    *("receptacletype", "receptacleatlocation", "atlocation", "ishot", "iscool", "isclean", "istoggled", "issliced"),
    *("ison", "holds", "holdsany", "wasinreceptacle", "checked", "examined", "moveable", "full", "="),
    *("holdsanyreceptacleobject", "isreceptacleobjectfull"),
}
"""Predicates of the domain; the last rows change nothing that can be seen or done."""


@dataclass(frozen=True)
class Rules:
    """Everything about a game that no command changes; things are numbered in the order of their ids.

    Attributes:
        objects: Id of each object.
        object_names: What texts call each object.
        object_types: Type of each object.
        receptacles: Id of each receptacle that stands somewhere.
        receptacle_names: What texts call each receptacle.
        receptacle_types: Type of each receptacle.
        places: Number of each receptacle's location.
        openable: Whether each receptacle opens and closes.
        flags: Flag -> the objects that have it.
        fits: Pairs (type of receptacle, type of object) that go together.
        inner: Objects inside each object, by number.
        start: Number of the location where the agent starts; -1 where nothing stands.
        contents: Objects in each receptacle at the start.
        opened: Receptacles that are open at the start.
        facts: State (``"ishot"`` …) -> objects that have it at the start.
        lying: Pairs (object, location) at the start.
        goal: The goal's expression.
        texts: Texts of receptacles by number and contents; filled as they are needed.
        menus: Commands by what they depend on; filled as they are needed.
    """

    objects: tuple[str, ...]
    object_names: tuple[str, ...]
    object_types: tuple[str, ...]
    receptacles: tuple[str, ...]
    receptacle_names: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    places: tuple[int, ...]
    openable: tuple[bool, ...]
    flags: Mapping[str, frozenset[int]]
    fits: frozenset[tuple[str, str]]
    inner: Mapping[int, tuple[int, ...]]
    start: int
    contents: tuple[tuple[int, ...], ...]
    opened: frozenset[int]
    facts: Mapping[str, frozenset[int]]
    lying: frozenset[tuple[int, int]]
    goal: Expression
    texts: dict[object, str] = field(default_factory=dict, repr=False, compare=False)
    menus: dict[object, object] = field(default_factory=dict, repr=False, compare=False)


def make_rules(problem: Problem) -> Rules:
    """Return the rules of a problem.

    Raises:
        InputError: A predicate is none of the domain's, or a fact names what there is not.
    """
    unknown = sorted(set(problem.facts) - KNOWN)
    if unknown:
        raise InputError(f"pddl_problem: unsupported domain: predicate '{unknown[0]}' is none of the household games'")
    of = problem.facts.get
    objects = sorted(name for name, kind in problem.objects.items() if kind == "object")
    where = dict(_pairs(of("receptacleatlocation", ()), "receptacleatlocation"))
    receptacles = sorted(where)
    number = {name: place for place, name in enumerate(objects)}
    spot = {name: place for place, name in enumerate(receptacles)}
    locations = {name: place for place, name in enumerate(sorted(set(where.values())))}
    object_type = dict(_pairs(of("objecttype", ()), "objecttype"))
    receptacle_type = dict(_pairs(of("receptacletype", ()), "receptacletype"))
    contents: list[set[int]] = [set() for _ in receptacles]
    for thing, receptacle in _pairs(of("inreceptacle", ()), "inreceptacle"):
        if receptacle in spot:
            contents[spot[receptacle]].add(_known(number, thing, "inreceptacle"))
    inner: dict[int, list[int]] = {}
    for thing, outer in _pairs(of("inreceptacleobject", ()), "inreceptacleobject"):
        inner.setdefault(_known(number, outer, "inreceptacleobject"), []).append(
            _known(number, thing, "inreceptacleobject")
        )
    flags = {flag: _those(of(flag, ()), number) for flag in FLAGS}
    lying = {
        (number[thing], locations[place])
        for thing, place in _pairs(of("objectatlocation", ()), "objectatlocation")
        if place in locations and thing in number
    }
    agent = [place for _, place in _pairs(of("atlocation", ()), "atlocation")]
    opens = {name for (name,) in of("openable", ()) if name in spot}
    return Rules(
        objects=tuple(objects),
        object_names=spoken(objects),
        object_types=tuple(object_type.get(name, "") for name in objects),
        receptacles=tuple(receptacles),
        receptacle_names=spoken(receptacles),
        receptacle_types=tuple(receptacle_type.get(name, "") for name in receptacles),
        places=tuple(locations[where[name]] for name in receptacles),
        openable=tuple(name in opens for name in receptacles),
        flags=flags,
        fits=frozenset(_pairs(of("cancontain", ()), "cancontain")),
        inner={outer: tuple(sorted(things)) for outer, things in inner.items()},
        start=locations.get(agent[0], -1) if agent else -1,
        contents=tuple(tuple(sorted(things)) for things in contents),
        opened=frozenset(spot[name] for (name,) in of("opened", ()) if name in spot),
        facts={name: _those(of(name, ()), number) for name in ("isclean", "ishot", "iscool", "istoggled", "issliced")},
        lying=frozenset(lying),
        goal=problem.goal,
    )


def spoken(ids: list[str]) -> tuple[str, ...]:
    """Return what texts call things with these sorted ids: the base of the id and a number, the highest first."""
    bases = [name.partition("_bar_")[0] + ("basin" if "basin" in name else "") for name in ids]
    total: dict[str, int] = {base: len(list(same)) for base, same in groupby(sorted(bases))}
    names = []
    for base in bases:
        names.append(f"{base} {total[base]}")
        total[base] -= 1
    return tuple(names)


def listed(names: Iterable[str]) -> str:
    """Return "a x, a y, and a z"; "nothing" for none."""
    words = [f"a {name}" for name in names]
    if len(words) < 2:
        return words[0] if words else "nothing"
    return ", ".join(words[:-1]) + f", and {words[-1]}"


def _pairs(facts: Iterable[tuple[str, ...]], name: str) -> list[tuple[str, str]]:
    pairs = []
    for fact in facts:
        if len(fact) != 2:
            raise InputError(f"pddl_problem: '{name}' takes two arguments, got {' '.join(fact) or 'none'}")
        pairs.append((fact[0], fact[1]))
    return pairs


def _known(number: Mapping[str, int], name: str, fact: str) -> int:
    if name not in number:
        raise InputError(f"pddl_problem: '{fact}' names the object '{name}', which is not declared")
    return number[name]


def _those(facts: Iterable[tuple[str, ...]], number: Mapping[str, int]) -> frozenset[int]:
    return frozenset(number[fact[0]] for fact in facts if len(fact) == 1 and fact[0] in number)
