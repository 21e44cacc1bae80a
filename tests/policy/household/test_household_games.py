"""The household games: every official walkthrough wins, texts by the grammar, games made here, what is refused."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.policy import HouseholdEnv, HouseholdGame, HouseholdVectorEnv, generate_games, load_household_games
from steelyard.policy.household.env import NOTHING
from steelyard.policy.household.game import KINDS
from steelyard.policy.household.pddl import expression, read_problem
from steelyard.policy.household.rules import listed, spoken
from steelyard.policy.household.tracker import (
    HouseholdTracker,
    appliance,
    base,
    command_words,
    observation_class,
    task_words,
)

MADE = generate_games(24, seed=7)


def play(game, commands):
    env = game.make_env(max_steps=len(commands) + 1)
    observation, _info = env.reset()
    told = [observation]
    for command in commands:
        observation, *_ = env.step(command)
        told.append(observation)
    return env, told


@pytest.mark.parametrize(("split", "count"), [("train", 600), ("valid_seen", 140), ("valid_unseen", 134)])
def test_every_official_walkthrough_wins_at_its_last_command(mirror, split, count):
    games = load_household_games(split)
    assert len(games) == count
    for game in games:
        env = game.make_env()
        _, info = env.reset()
        for place, command in enumerate(game.walkthrough):
            assert command in info["admissible"], (game.name, command)
            _, reward, won, _, info = env.step(command)
            assert won == (place == len(game.walkthrough) - 1), (game.name, command)
            assert reward == float(won)


def test_official_games_by_kind_and_at_random(mirror):
    some = load_household_games("train", kinds=("look_at_obj_in_light",), limit=5, seed=1)
    assert {game.kind for game in some} == {"look_at_obj_in_light"}
    assert [g.trial for g in some] == [g.trial for g in load_household_games("train", ("look_at_obj_in_light",), 5, 1)]
    admissible = [len(game.make_env().reset()[1]["admissible"]) for game in load_household_games("valid_unseen")]
    assert 15 < np.mean(admissible) < 40


def test_official_texts(mirror):
    games = load_household_games("train", kinds=("pick_heat_then_place_in_recep",))
    game = next(game for game in games if "apple" in game.task)
    _, told = play(game, game.walkthrough)
    assert told[0].startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert any(text.startswith("You pick up the apple") for text in told)
    assert any("You heat the apple" in text and "using the microwave" in text for text in told)


@pytest.mark.parametrize("game", MADE, ids=lambda game: game.name)
def test_games_made_here_are_won_by_their_walkthrough_alone(game):
    env = HouseholdEnv(game, max_steps=30)
    _, info = env.reset()
    for place, command in enumerate(game.walkthrough):
        assert command in info["admissible"]
        _, _, won, _, info = env.step(command)
        assert won == (place == len(game.walkthrough) - 1)


def test_games_made_here_are_of_all_kinds_and_the_same_for_a_seed():
    assert {game.kind for game in MADE} == set(KINDS)
    again = generate_games(3, seed=7)
    assert [game.pddl_problem for game in again] == [game.pddl_problem for game in MADE[:3]]
    assert generate_games(1, seed=8)[0].pddl_problem != MADE[0].pddl_problem
    for bad in ({"n": 0}, {"n": 1, "kinds": ("fly",)}):
        with pytest.raises(InputError):
            generate_games(**bad)


@given(st.integers(0, 23), st.integers(0, 10**6))
def test_a_random_player_meets_the_rules(which, seed):
    """Whatever is done: one thing held at most, nothing lost, the copy goes its own way, commands are sorted."""
    game, draws = MADE[which], np.random.default_rng(seed)
    env = HouseholdEnv(game, max_steps=25)
    _, info = env.reset()
    while not env.over:
        offered = info["admissible"]
        assert offered == sorted(set(offered))
        assert {"look", "inventory", "help"} <= set(offered)
        held = env.held >= 0
        assert held == any(
            command.startswith("examine") and command[8:] in env.rules.object_names for command in offered
        )
        assert not (held and any(command.startswith("take ") for command in offered))
        command = offered[draws.integers(len(offered))]
        other = copy.deepcopy(env)
        key = other.state_key(full=True)
        observation, _reward, _won, _cut, info = env.step(command)
        assert observation != NOTHING
        assert other.state_key(full=True) == key
        assert other.step(command)[0] == observation
        assert other.state_key() == env.state_key()
        things = {thing for place in env.contents for thing in place} | ({env.held} if env.held >= 0 else set())
        assert len(things) == len(env.rules.objects)


def problem(extra="", goal="(exists (?a - agent ?o - object) (holds ?a ?o))"):
    facts = (
        "(receptacletype fridge_bar_1 fridgetype) (receptacleatlocation fridge_bar_1 l1) (openable fridge_bar_1) "
        "(receptacletype table_bar_1 tabletype) (receptacleatlocation table_bar_1 l2) "
        "(receptacletype shelf_bar_1 shelftype) (receptacleatlocation shelf_bar_1 l2) "
        "(objecttype apple_bar_1 appletype) (pickupable apple_bar_1) (coolable apple_bar_1) (sliceable apple_bar_1) "
        "(objectatlocation apple_bar_1 l2) (inreceptacle apple_bar_1 table_bar_1) (inreceptacle apple_bar_1 "
        "shelf_bar_1) "
        "(objecttype knife_bar_1 knifetype) (pickupable knife_bar_1) (inreceptacle knife_bar_1 table_bar_1) "
        "(objecttype cup_bar_1 cuptype) (pickupable cup_bar_1) (isreceptacleobject cup_bar_1) "
        "(inreceptacle cup_bar_1 table_bar_1) (inreceptacleobject knife_bar_1 cup_bar_1) "
        "(cancontain fridgetype appletype) (cancontain tabletype appletype) (atlocation agent1 l0) "
    )
    return (
        "(define (problem p) (:domain alfred) (:objects agent1 - agent Apple_bar_1 - object knife_bar_1 - object "
        "cup_bar_1 - object fridge_bar_1 - receptacle table_bar_1 - receptacle shelf_bar_1 - receptacle) "
        f"(:init {facts} {extra}) (:goal (and {goal})))"
    )


GOAL = (
    "(exists (?r - receptacle ?o - object) (and (objecttype ?o appletype) (iscool ?o) (receptacletype ?r fridgetype) "
    "(inreceptacle ?o ?r)))"
)


def small(extra="", goal=GOAL):
    return HouseholdGame("pick-apple", "t", "put a cool apple in fridge.", problem(extra, goal), ())


def test_an_object_in_two_receptacles_is_taken_out_of_one():
    env, told = play(small(), ["go to table 1", "take apple 1 from shelf 1", "examine table 1"])
    assert "apple 1" in told[-1]
    assert env.held >= 0


def test_texts_of_what_is_held_and_where_one_stands():
    commands = [
        "go to table 1", "look", "inventory", "take apple 1 from table 1", "inventory", "examine apple 1",
        "go to fridge 1", "cool apple 1 with fridge 1", "examine apple 1", "open fridge 1", "move apple 1 to fridge 1",
    ]  # fmt: skip
    env, told = play(small(), commands)
    assert told[2:] == [
        "You are facing the shelf 1, and table 1. Next to it, you see nothing.",
        "You are not carrying anything.",
        "You pick up the apple 1 from the table 1.",
        "You are carrying: a apple 1.",
        "There's nothing special about apple 1.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You cool the apple 1 using the fridge 1.",
        "This is a cold apple 1.",
        "You open the fridge 1. The fridge 1 is open. In it, you see nothing.",
        "You move the apple 1 to the fridge 1.",
    ]
    assert env.won
    assert env.placed == 1
    with pytest.raises(InputError, match="ended"):
        env.step("look")


def test_a_look_says_what_the_games_engine_says():
    """As ALFWorld's engine: no receptacles at the start; what changed its receptacle at one place lies beside."""
    commands = [
        "look", "go to table 1", "take apple 1 from shelf 1", "move apple 1 to table 1", "look",
        "take knife 1 from table 1", "look", "go to fridge 1", "look", "go to table 1", "move knife 1 to shelf 1",
        "look", "take apple 1 from table 1", "look",
    ]  # fmt: skip
    env, told = play(small("(cancontain shelftype knifetype)"), commands)
    facing = "You are facing the shelf 1, and table 1. Next to it, you see"
    assert [text for command, text in zip(commands, told[1:], strict=True) if command == "look"] == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        f"{facing} a apple 1.",
        f"{facing} a apple 1.",
        "You are facing the fridge 1. Next to it, you see nothing.",
        f"{facing} a apple 1, and a knife 1.",
        f"{facing} a knife 1.",
    ]
    assert env.left == {(0, 1), (0, 2), (2, 2)}


def test_the_full_key_has_what_a_later_look_would_tell():
    """What was put back leaves no trace in the key; what was taken out of one receptacle and put into another does."""
    game = small("(cancontain shelftype appletype)")
    straight, _ = play(game, ["go to table 1", "take apple 1 from table 1"])
    again, _ = play(game, ["go to table 1", "take apple 1 from shelf 1", "move apple 1 to shelf 1",
                           "take apple 1 from table 1"])  # fmt: skip
    other, _ = play(game, ["go to table 1", "take apple 1 from shelf 1", "move apple 1 to table 1"])
    assert straight.state_key(full=True) == again.state_key(full=True)
    assert other.state_key(full=True)[-1] == ((0, 1),)


def test_blanks_around_a_command_do_not_matter():
    assert play(small(), [" go to table 1\n"])[1][1].startswith("You arrive at table 1.")


def test_a_knife_slices_and_a_cup_has_contents():
    _, told = play(
        small(), ["go to table 1", "take knife 1 from table 1", "slice apple 1 with knife 1", "examine knife 1"]
    )
    assert told[3] == "You sliced the apple 1 with the knife 1."
    _, told = play(small(), ["go to table 1", "take cup 1 from table 1", "examine cup 1"])
    assert told[-1] == "This is a normal cup 1. In it, you see a knife 1."
    env = HouseholdEnv(small(), slicing=False)
    env.reset()
    for command in ("go to table 1", "take knife 1 from table 1"):
        info = env.step(command)[4]
    assert not any(command.startswith("slice") for command in info["admissible"])


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (("isclean", "ishot", "issliced"), "This is a hot and clean sliced apple 1."),
        (("isclean", "iscool"), "This is a cool and clean apple 1."),
        (("isclean", "issliced"), "This is a clean sliced apple 1."),
        (("ishot", "issliced"), "This is a hot sliced apple 1."),
        (("ishot",), "This is a hot apple 1."),
        (("isclean",), "This is a clean apple 1."),
        (("issliced",), "This is a sliced apple 1."),
    ],
)
def test_the_states_of_an_object_in_words(facts, text):
    extra = " ".join(f"({fact} apple_bar_1)" for fact in facts)
    assert play(small(extra), ["go to table 1", "take apple 1 from table 1", "examine apple 1"])[1][-1] == text


def test_what_is_not_admissible_does_nothing_or_is_refused():
    env = HouseholdEnv(small(), strict=True)
    env.reset()
    with pytest.raises(InputError, match="GO TO"):
        env.step("GO TO table 1")
    assert play(small(), ["Go to table 1", "go to  table 1", "fly"])[1][1:] == [NOTHING] * 3
    with pytest.raises(InputError, match="reset"):
        HouseholdEnv(small()).step("look")
    for options in ({"max_steps": 0}, {"reward": float("nan")}):
        with pytest.raises(InputError):
            HouseholdEnv(small(), **options)


def test_time_runs_out():
    env = HouseholdEnv(small(), max_steps=2)
    env.reset()
    assert env.step("look")[3] is False
    assert env.step("look")[2:4] == (False, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "sections"),
        (problem().replace("(:goal", "(:aim"), "sections"),
        (problem("(flies apple_bar_1)"), "flies"),
        (problem(goal="(flies ?o)"), "flies"),
        (problem(goal="(exists (?o - bird) (pickupable ?o))"), "bird"),
        (problem(goal="(exists (?o) (pickupable ?o))"), "no type"),
        (problem(goal="(pickupable ?o)"), "no quantifier"),
        (problem(goal="(exists (?o - object) (ishot ?o ?o))"), "takes 1"),
        (problem().rstrip(")"), "not closed"),
        (problem("(inreceptacle ghost_1 table_bar_1)"), "ghost"),
        (problem("(inreceptacleobject ghost_1 cup_bar_1)"), "ghost"),
        (problem("(objecttype apple_bar_1)"), "two arguments"),
        (problem(goal="(and " * 60 + ")" * 60), "nested"),
    ],
)
def test_problems_of_another_kind_are_refused_when_they_are_loaded(text, words):
    game = HouseholdGame("x", "t", "task", text, ())
    with pytest.raises(InputError, match=words):
        _ = game.won


def test_goals_with_all_and_or_and_not():
    everything = small(goal="(forall (?o - object) (or (not (ishot ?o)) (pickupable ?o)))")
    env, _ = play(everything, ["go to table 1", "take apple 1 from table 1"])
    assert env.won


def test_a_file_of_ones_own(tmp_path):
    folder = tmp_path / "valid_seen" / "pick_and_place_simple-Apple-None-Fridge-1" / "trial_1"
    folder.mkdir(parents=True)
    good = {"pddl_problem": problem(), "grammar": '"rhs": "Your task is to: hold it."', "walkthrough": ["look"]}
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(good))
    game = HouseholdGame.from_tw_pddl(path)
    assert (game.task, game.kind, game.split, game.optimal_steps) == (
        "hold it.",
        "pick_and_place_simple",
        "valid_seen",
        1,
    )
    assert load_household_games("valid_seen", folder=tmp_path)[0].trial == "trial_1"
    for field, value in (("pddl_problem", 1), ("grammar", "none"), ("walkthrough", [1])):
        path.write_text(json.dumps({**good, field: value}))
        with pytest.raises(InputError, match=r"game\.tw-pddl"):
            HouseholdGame.from_tw_pddl(path)
    path.write_text("{")
    with pytest.raises(InputError, match="JSON"):
        HouseholdGame.from_tw_pddl(path)
    path.write_text("[]")
    with pytest.raises(InputError, match="object"):
        HouseholdGame.from_tw_pddl(path)
    with pytest.raises(InputError, match="cannot be read"):
        HouseholdGame.from_tw_pddl(tmp_path / "none")
    with pytest.raises(InputError, match="no files"):
        load_household_games("train", folder=tmp_path / "empty")
    path.write_text(json.dumps(good))
    with pytest.raises(InputError, match="no game of 'train'"):
        load_household_games("train", folder=tmp_path)
    for options in ({"split": "test"}, {"kinds": ("fly",)}, {"limit": 0}):
        with pytest.raises(InputError):
            load_household_games(**options)


def test_names_and_lists():
    assert spoken(["mug_bar_1", "mug_bar_2", "sink_bar_1_bar_sinkbasin"]) == ("mug 2", "mug 1", "sinkbasin 1")
    assert listed([]) == "nothing"
    assert listed(["x 1"]) == "a x 1"
    assert listed(["x 1", "y 2"]) == "a x 1, and a y 2"
    assert expression("x (a (b c) d)") == ("a", ("b", "c"), "d")
    with pytest.raises(InputError, match="characters"):
        read_problem("x" * 5_000_000)


def test_several_games_side_by_side():
    env = HouseholdVectorEnv(MADE[:2], max_steps=len(MADE[0].walkthrough))
    observations, infos = env.reset()
    assert len(observations) == len(infos) == 2
    for place, command in enumerate(MADE[0].walkthrough):
        told, rewards, won, cut, infos = env.step([command, "look"][: len(env.live)])
        assert len(told) == len(rewards) == len(infos)
        assert won[0] == (place == len(MADE[0].walkthrough) - 1)
    assert cut == [False, True]
    assert env.live == []
    for bad in (lambda: env.step(["look"]), lambda: HouseholdVectorEnv([])):
        with pytest.raises(InputError):
            bad()


def test_the_tracker_knows_what_was_answered_and_nothing_more():
    tracker = HouseholdTracker("put a clean mug in desk.")
    assert tracker.facts() == {"hold": "none", "done": "no", "placed": "0"}
    tracker.observe("take mug 1 from shelf 1", NOTHING)
    assert tracker.hold == "none"
    tracker.observe("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.")
    tracker.observe("clean mug 1 with sinkbasin 1", "You clean the mug 1 using the sinkbasin 1.")
    assert tracker.facts() == {"hold": "target", "done": "yes", "placed": "0"}
    tracker.observe("move mug 1 to desk 1", "You move the mug 1 to the desk 1.")
    assert tracker.facts() == {"hold": "none", "done": "no", "placed": "1"}
    tracker.observe("take pen 1 from desk 1", "You pick up the pen 1 from the desk 1.")
    tracker.observe("move pen 1 to desk 1", "You move the pen 1 to the desk 1.")
    assert tracker.facts() == {"hold": "none", "done": "no", "placed": "1"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The fridge 1 is closed.", "closed"), ("On the desk 1, you see nothing.", "empty"),
        ("You arrive at desk 1. On the desk 1, you see a mug 2, and a pen 1.", "target"),
        ("On the desk 1, you see a pen 1.", "other"), ("You pick up the mug 1 from the desk 1.", "picked"),
        ("You move the mug 1 to the desk 1.", "moved"), ("You cool the mug 1 using the fridge 1.", "transformed"),
        ("You turn on the desklamp 1.", "on"), ("You are carrying: a mug 1.", "misc"), ("Nothing happens.", "misc"),
    ],
)  # fmt: skip
def test_kinds_of_observations(text, kind):
    assert observation_class(text, task_words("put a mug in desk.")) == kind


def test_commands_and_tasks_in_parts():
    assert command_words("take mug 1 from shelf 2") == ("take", "mug 1", "shelf 2")
    assert command_words("go to desk 1") == ("go", "", "desk 1")
    assert command_words("open fridge 1") == ("open", "fridge 1", "fridge 1")
    assert command_words("look") == ("look", "", "")
    assert base("soap bar 12") == "soap bar"
    tasks = {"clean some mug": "sinkbasin", "put a hot egg": "microwave", "cool some pan": "fridge",
             "look at bowl": "desklamp", "find two pens": "two", "put a pen": "put"}  # fmt: skip
    assert {task: appliance(task) for task in tasks} == tasks
