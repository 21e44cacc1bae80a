"""The goal of a game as a function of its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from steelyard.errors import InputError
from steelyard.policy.household.pddl import Expression
from steelyard.policy.household.rules import Rules

Bound = dict[str, int]


class State(Protocol):
    """What a goal may ask of a game's state; objects, receptacles and locations by their numbers."""

    location: int
    held: int
    contents: list[tuple[int, ...]]
    opened: set[int]
    facts: dict[str, set[int]]


Test = Callable[[State, Bound], bool]
_STATES = ("isclean", "ishot", "iscool", "istoggled", "issliced")
_QUANTIFIERS = ("exists", "forall")


def compile_goal(rules: Rules) -> Callable[[State], bool]:
    """Return a function that says whether a state fulfils the goal.

    Raises:
        InputError: The goal uses a predicate, variable or type that is not known, told when the game is loaded.
    """
    test = _compiled(rules.goal, rules, {})
    return lambda state: test(state, {})


def goal_types(rules: Rules) -> tuple[frozenset[str], frozenset[str]]:
    """Return the types of objects and of receptacles that the goal names."""
    things: set[str] = set()
    receptacles: set[str] = set()

    def visit(part: Expression) -> None:
        if isinstance(part, str):
            return
        if len(part) == 3 and part[0] == "objecttype":
            things.add(str(part[2]))
        if len(part) == 3 and part[0] == "receptacletype":
            receptacles.add(str(part[2]))
        for inside in part:
            visit(inside)

    visit(rules.goal)
    return frozenset(things), frozenset(receptacles)


def _compiled(part: Expression, rules: Rules, kinds: dict[str, str]) -> Test:
    if isinstance(part, str) or not part or not isinstance(part[0], str):
        raise InputError(f"goal: '{part}' is no condition")
    head, rest = part[0], part[1:]
    if head in ("and", "or"):
        tests = [_compiled(inside, rules, kinds) for inside in rest]
        decide = all if head == "and" else any
        return lambda state, bound: decide(test(state, bound) for test in tests)
    if head == "not" and len(rest) == 1:
        inside = _compiled(rest[0], rules, kinds)
        return lambda state, bound: not inside(state, bound)
    if head in _QUANTIFIERS and len(rest) == 2 and not isinstance(rest[0], str):
        return _quantified(head, rest[0], rest[1], rules, kinds)
    return _atom(head, rest, rules, kinds)


def _quantified(head: str, variables: Expression, body: Expression, rules: Rules, kinds: dict[str, str]) -> Test:
    """Return a test that tries the variables one by one; an "exists" drops a value as soon as a condition fails."""
    typed = _variables(variables)
    inside = {**kinds, **dict(typed)}
    conjunction = head == "exists" and not isinstance(body, str) and body[:1] == ("and",)
    parts = body[1:] if conjunction else (body,)
    names = [name for name, _ in typed]
    levels: list[list[Test]] = [[] for _ in names]
    for part in parts:
        used = [place for place, name in enumerate(names) if _mentions(part, name)]
        levels[max(used, default=len(names) - 1) if conjunction else -1].append(_compiled(part, rules, inside))
    # Only an "exists" may leave out what its body's type atom excludes.
    domains = [_domain(name, kind, body if head == "exists" else (), rules) for name, kind in typed]
    decide = any if head == "exists" else all

    def found(state: State, bound: Bound, place: int = 0) -> bool:
        def holds(value: int) -> bool:
            now = {**bound, names[place]: value}
            here = all(test(state, now) for test in levels[place])
            if place + 1 == len(names) or (conjunction and not here):
                return here
            return found(state, now, place + 1)

        return decide(holds(value) for value in domains[place])

    return found


def _mentions(part: Expression, name: str) -> bool:
    return part == name if isinstance(part, str) else any(_mentions(inside, name) for inside in part)


def _variables(part: Expression) -> list[tuple[str, str]]:
    words = [str(word) for word in part]
    typed: list[tuple[str, str]] = []
    waiting: list[str] = []
    place = 0
    while place < len(words):
        if words[place] == "-" and place + 1 < len(words):
            typed += [(name, words[place + 1]) for name in waiting]
            waiting = []
            place += 2
            continue
        waiting.append(words[place])
        place += 1
    if waiting or not typed:
        raise InputError(f"goal: the variables '{' '.join(words)}' have no type")
    return typed


def _domain(name: str, kind: str, body: Expression, rules: Rules) -> Sequence[int]:
    if kind == "agent":
        return (0,)
    if kind == "location":
        return range(-1, max(rules.places, default=-1) + 1)
    if kind not in ("object", "receptacle"):
        raise InputError(f"goal: variables of type '{kind}' are not known")
    types = rules.object_types if kind == "object" else rules.receptacle_types
    wanted = _type_of(name, f"{kind}type", body)
    return [number for number, found in enumerate(types) if wanted is None or found == wanted]


def _type_of(name: str, predicate: str, body: Expression) -> str | None:
    """Return the type that a conjunction of ``body`` demands of a variable."""
    if isinstance(body, str) or not body:
        return None
    if body[0] == predicate and body[1:2] == (name,):
        return str(body[2])
    if body[0] == "and":
        return next((found for part in body[1:] if (found := _type_of(name, predicate, part)) is not None), None)
    return None


def _atom(head: str, words: tuple[Expression, ...], rules: Rules, kinds: dict[str, str]) -> Test:
    names = [str(word) for word in words]
    makers: dict[str, tuple[int, Callable[..., Test]]] = {
        "=": (2, lambda a, b: lambda _, bound: bound[a] == bound[b]),
        "objecttype": (2, lambda a, b: lambda _, bound: rules.object_types[bound[a]] == b),
        "receptacletype": (2, lambda a, b: lambda _, bound: rules.receptacle_types[bound[a]] == b),
        "inreceptacle": (2, lambda a, b: lambda state, bound: bound[a] in state.contents[bound[b]]),
        "receptacleatlocation": (2, lambda a, b: lambda _, bound: rules.places[bound[a]] == bound[b]),
        "atlocation": (2, lambda _, b: lambda state, bound: state.location == bound[b]),
        "holds": (2, lambda _, b: lambda state, bound: state.held == bound[b]),
        "opened": (1, lambda a: lambda state, bound: bound[a] in state.opened),
        **{name: (1, _has(name)) for name in _STATES},
        **{name: (1, _flag(objects)) for name, objects in rules.flags.items()},
    }
    if head not in makers:
        raise InputError(f"goal: predicate '{head}' is not known")
    count, make = makers[head]
    if len(names) != count:
        raise InputError(f"goal: '{head}' takes {count} arguments, got {len(names)}")
    variables = names[:1] if head.endswith("type") else names
    for name in variables:
        if name not in kinds:
            raise InputError(f"goal: '{head}' uses '{name}', which no quantifier binds")
    return make(*names)


def _has(name: str) -> Callable[[str], Test]:
    return lambda a: lambda state, bound: bound[a] in state.facts[name]


def _flag(objects: Any) -> Callable[[str], Test]:
    return lambda a: lambda _, bound: bound[a] in objects
