"""The user's own questions: rows checked, debates held once per call, every arm scored."""

import asyncio
import json

import numpy as np
import pytest

from steelyard.agents.dear import arms, bench, tasks, user
from steelyard.agents.dear.chat_agents import Sampling, as_agent
from steelyard.contracts import CellInput
from steelyard.errors import InputError

ROWS = [{"question": f"What is {n} + {n}?", "options": [str(2 * n), "77"], "answer": 0} for n in range(1, 9)]
WHERE = {"endpoint": "http://127.0.0.1:9/v1", "model": "m"}


def cell(**options):
    chosen = user.Options(**{**WHERE, **options}).model_dump(mode="json")
    data = {**tasks.headline()}
    return CellInput(user.TASK, "dear", {}, {**bench.PARAMS, "episodes": 64}, chosen, 0, data)


def test_rows_are_read_from_files_and_lists(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({**row, "answer": row["options"][0]}) for row in ROWS))
    assert user.read_rows(path) == user.read_rows(ROWS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question": " "}, "question"),
        ({"question": "x" * 20_001}, "question"),
        ({"options": "ab"}, "options"),
        ({"options": ["a"]}, "options"),
        ({"options": ["a", "A "]}, "options"),
        ({"options": ["a", 3]}, "options"),
        ({"options": ["a", "b" * 1001]}, "options"),
        ({"answer": 2}, "answer"),
        ({"answer": True}, "answer"),
        ({"answer": "zzz"}, "answer"),
        ({"answer": None}, "answer"),
    ],
)
def test_bad_rows_are_named(change, said):
    with pytest.raises(InputError, match=f"row 2: .*'{said}'"):
        user.read_rows([ROWS[0], {**ROWS[1], **change}])


def test_bad_data():
    with pytest.raises(InputError, match="row 1: must be a table"):
        user.read_rows([3])
    with pytest.raises(InputError, match="got int"):
        user.read_rows(3)
    with pytest.raises(InputError, match="0 rows"):
        user.read_rows([])
    with pytest.raises(InputError, match="2 questions; at least 8"):
        user.user_task(ROWS[:2], **WHERE)
    with pytest.raises(InputError, match="endpoint"):
        user.user_task(ROWS, endpoint="http://me:secret@host/v1", model="m")


class Model:
    """Says the first option's number for half the roles, 77 for the rest, and counts its calls."""

    def __init__(self, fails=False):
        self.calls, self.fails = 0, fails

    def __call__(self, messages):
        self.calls += 1
        if self.fails:
            raise RuntimeError("down")
        text = messages[0]["content"]
        asked = messages[1]["content"]
        number = 2 * int(asked.split("What is ")[1].split(" ")[0])
        said = 77 if text.startswith("You look") else number
        lines = [line for line in asked.splitlines() if line[1:3] == ". "]
        label = next(line[0] for line in lines if line.endswith(f". {said}"))
        return f"Because.\nAnswer: {label}"


def test_every_arm_is_scored_and_equal_calls_are_made_once():
    model = Model()
    team = [user.Cached(as_agent(model), role) for role in user._ROLES[:3]]
    controller = user.fixed_policies(bench.PARAMS["fixed"], 3)["critique_stop"]
    given = cell(agents=3, rounds=1)
    found = user.debated(given, ROWS[:2], team, controller, 0.0)
    scored = {"dear": found.metrics, **arms.derive({"dear": found.metrics})}
    assert set(scored) == {"dear", "vote", "mad_stop", "critique_stop", "ring", "self_consistency"}
    assert scored["vote"]["vote_accuracy"] == 1.0
    assert scored["vote"]["calls"] == 3.0
    assert scored["self_consistency"]["calls"] == scored["dear"]["calls"] == 6.0
    made = model.calls
    again = user.debated(given, ROWS[:2], team, controller, 0.0)
    assert again.metrics == found.metrics
    assert model.calls == made


def test_chance_asks_nobody():
    data = {"rows": np.array([json.dumps(row) for row in user.read_rows(ROWS)])}
    given = cell()
    found = user.run(CellInput(user.TASK, "chance", {}, given.params, given.options, 3, data))
    assert found.metrics["vote_accuracy"] == 0.5


def test_a_dead_model_is_a_wrong_vote():
    team = [user.Cached(as_agent(Model(fails=True)), role) for role in user._ROLES[:2]]
    controller = user.fixed_policies(bench.PARAMS["fixed"], 3)["mad_stop"]
    found = user.debated(cell(agents=2), ROWS[:1], team, controller, 0.0).metrics
    assert found["vote_accuracy"] == found["vote:vote_accuracy"] == 0.0


def test_a_role_goes_before_the_system_turn_or_makes_one():
    heard = []

    def listen(messages):
        heard.append(messages)
        return "Answer: A"

    agent = user.Cached(as_agent(listen), "ROLE.")
    for chat in (
        [{"role": "user", "content": "q"}],
        [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}],
    ):
        asyncio.run(agent.ask(chat, Sampling(0.0, 1, 5)))
    assert [messages[0]["content"] for messages in heard] == ["ROLE.", "ROLE. S"]
    assert agent.count([{"role": "user", "content": "q"}], "abc").completion == 1
