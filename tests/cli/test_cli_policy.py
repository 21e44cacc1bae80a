"""``steelyard policy`` on rollouts in files, and the games on a terminal."""

import io
import json

import numpy as np
import pytest

from steelyard.policy import CommitmentPolicy, LogLinearPolicy, collect, generate_games
from steelyard.policy.arc.heads import committed
from steelyard.policy.training import anchored


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Rollouts of four games: steps with states and texts, and turns with scored commitments."""
    folder = tmp_path_factory.mktemp("rollouts")
    games = generate_games(4, 5)
    policy = LogLinearPolicy()
    policy.fit_bc(games, 6)
    envs = [(game.task, anchored(game.make_env(12, 10.0), "state")) for game in games for _ in range(6)]
    kept = ("task", "traj", "t", "reward", "anchor", "observation", "action", "admissible", "success")
    with (folder / "steps.jsonl").open("w") as stream:
        for episode in collect(envs, policy, np.random.default_rng(0)):
            stream.writelines(json.dumps({name: step[name] for name in kept}) + "\n" for step in episode)
    speaker = CommitmentPolicy()
    speaker.fit_bc(games)
    envs = [(game.task, committed(game.make_env(12, 10.0))) for game in games for _ in range(6)]
    with (folder / "turns.jsonl").open("w") as stream:
        for episode in collect(envs, speaker, np.random.default_rng(0)):
            steps = [{name: step[name] for name in ("reward", "action", "process")} for step in episode]
            stream.write(json.dumps({"task": episode[0]["task"], "traj": episode[0]["traj"], "steps": steps}) + "\n")
    return folder


@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "rloo", "gigpo", "g2po"])
def test_every_step_gets_an_advantage(steelyard, files, tmp_path, method):
    out = tmp_path / "credit.csv"
    code, text, err = steelyard("policy", "advantages", files / "steps.jsonl", "--method", method, "-o", out, "--json")
    assert code == 0, err
    rows = json.loads(text)
    assert len(rows) == len(out.read_text().splitlines()) - 1 == len((files / "steps.jsonl").read_text().splitlines())
    assert np.isfinite([row["advantage"] for row in rows]).all()
    assert ("ec" in rows[0]) == (method == "g2po")


def test_commitments_get_theirs(steelyard, files):
    code, text, err = steelyard("policy", "advantages", files / "turns.jsonl", "--method", "arc", "--json")
    assert code == 0, err
    assert {"advantage", "advantage_progress", "advantage_prediction"} <= set(json.loads(text)[0])


def test_the_largest_credit_of_each_task_is_shown(steelyard, files):
    code, text, err = steelyard("policy", "advantages", files / "steps.jsonl", "--anchor", "observation")
    assert code == 0, err
    assert text.count("task ") >= 4
    assert "rollout" in text


def test_anchors_that_are_no_states_are_warned_of(steelyard, files, tmp_path):
    page = tmp_path / "states.html"
    code, text, err = steelyard("policy", "check", files / "steps.jsonl", "--anchor", "observation", "--html", page)
    assert code == 0, err
    assert "warning: " in text
    assert "different admissible actions" in text
    shown = page.read_text()
    assert "Steps of the largest credit" in shown
    assert "<script" not in shown
    code, text, _ = steelyard("policy", "check", files / "steps.jsonl", "--json")
    assert code == 0
    assert json.loads(text)["aliased_share"] < 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("advantages", "none.jsonl"), "cannot be read"),
        (("advantages", "steps.jsonl", "--method", "ppo"), "--method"),
        (("advantages", "turns.jsonl", "--method", "g2po"), "'anchor'"),
        (("advantages", "steps.jsonl", "--anchor", "state"), "anchor must be"),
        (("advantages", "steps.jsonl", "--parts", "xx"), "parts"),
        (("advantages", "steps.jsonl", "--method", "arc"), "progress"),
        (("advantages", "steps.jsonl", "-o", "x.txt"), "must end in"),
        (("check", "turns.jsonl"), "'anchor'"),
        (("play", "3", "--folder", "none"), "no files"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(steelyard, files, arguments, words):
    given = [files / one if one.endswith(".jsonl") else one for one in arguments]
    code, _, err = steelyard("policy", *given)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_a_game_is_shown_and_played(steelyard, monkeypatch):
    code, text, err = steelyard("policy", "play", "1", "--walkthrough")
    assert code == 0, err
    assert text.rstrip().endswith("won")
    monkeypatch.setattr("sys.stdin", io.StringIO("?\nlook\n\n"))
    code, text, _ = steelyard("policy", "play")
    assert code == 0
    assert "You are in the middle of a room" in text


@pytest.mark.parametrize(
    ("method", "file", "arms", "metric"),
    [
        ("g2po", "steps.jsonl",
         {"g2po", "g2po_ec", "g2po_nc", "g2po_lam", "grpo", "dr_grpo", "rloo", "gigpo", "random"}, "agreement"),
        ("arc", "turns.jsonl", {"arc", "coupled", "outcome"}, "own_weight"),
    ],
)  # fmt: skip
def test_rollouts_are_weighed_as_the_documentation_says(steelyard, files, tmp_path, method, file, arms, metric):
    code, text, err = steelyard(
        "weigh", method, "--data", files / file, "--seeds", "2", "--store", tmp_path / "s.db", "--json"
    )
    assert code == 0, err
    found = json.loads(text)[0]
    assert {row["arm"] for row in found["rows"]} == arms
    assert {row["state"] for row in found["rows"]} == {"done"}
    assert found["primary"] == metric
    assert all(metric in row["metrics"] for row in found["rows"])
    assert not any("simulator" in arm["label"] or arm["role"] == "ceiling" for arm in found["arms"])
    judged = [verdict for verdict in found["verdicts"] if verdict["outcome"] != "not testable here"]
    assert judged, "the claim on rollouts is judged"


def test_steps_keep_their_numbers_and_the_input_is_not_overwritten(steelyard, tmp_path):
    rollouts = tmp_path / "a.jsonl"
    rollouts.write_text("".join(json.dumps({"traj": n, "t": t, "reward": n}) + "\n" for n in (0, 1) for t in (1, 2)))
    code, text, _ = steelyard("policy", "advantages", rollouts, "--method", "grpo", "--json")
    assert code == 0
    assert [row["t"] for row in json.loads(text)] == [1, 2, 1, 2]
    before = rollouts.read_bytes()
    code, _, err = steelyard("policy", "advantages", rollouts, "--method", "grpo", "-o", rollouts)
    assert code == 2
    assert "is the file of the rollouts" in err
    assert rollouts.read_bytes() == before


def test_a_game_that_no_one_waits_for(steelyard):
    code, _, err = steelyard("policy", "play", "999999999999")
    assert code == 2
    assert "from 0 to 999" in err
