"""Six rounds with Flower's own processes: eight SuperNodes, one of them killed in the second round and started again.

The app is that of the documentation, with a recorder around it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from superlink import Federation, federation, wait_until, write_app_of_the_page

CLIENTS, ROUNDS, LOST = 8, 6, 5

RECORDED_CLIENT = """
import os
from pathlib import Path

import numpy as np
from flwr.clientapp import ClientApp

from linear_app.client_app import evaluate, introduce, train
from steelyard.fed.gadaphead.flower_client import partition_id, received_arrays

app = ClientApp()
app.evaluate()(evaluate)
app.query()(introduce)


@app.train()
def recorded(message, context):
    client, number = partition_id(context), message.content["config"]["server-round"]
    path = Path(context.run_config["records"]) / f"received-{number}-{client}.npy"
    np.save(path.with_suffix(".part.npy"), received_arrays(message, context)["head"])
    os.replace(path.with_suffix(".part.npy"), path)
    return train(message, context)
"""

RECORDED_SERVER = """
import json
from pathlib import Path

from linear_app import server_app
from steelyard.fed import GAdapHeadStrategy

FOLDER = Path("RECORDS")
ROUNDS = 6


class Recorded(GAdapHeadStrategy):
    def aggregate_train(self, server_round, replies):
        answer = super().aggregate_train(server_round, replies)
        now = self.rounds[-1]
        told = {
            "heads": {client: self.client_arrays(client)["head"].tolist() for client in self.server.sent},
            "groups": now.groups,
            "lam": now.lam,
            "failures": now.failures,
        }
        part = FOLDER / f"server-{self.rounds_done}.part"
        part.write_text(json.dumps(told))
        part.rename(FOLDER / f"server-{self.rounds_done}.json")
        return answer

    def configure_evaluate(self, server_round, *rest):
        return super().configure_evaluate(server_round, *rest) if server_round == ROUNDS else []  # a process each

    def aggregate_evaluate(self, server_round, replies):
        answer = super().aggregate_evaluate(server_round, replies)
        if answer is not None:
            (FOLDER / "evaluation.json").write_text(json.dumps(self.rounds[-1].evaluation))
        return answer


server_app.GAdapHeadStrategy = Recorded
app = server_app.app
"""


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """The folder that the app writes what it saw to; the app lies beside it."""
    app, records = tmp_path / "app", tmp_path / "records"
    records.mkdir()
    write_app_of_the_page(app)
    (app / "linear_app" / "recorded_client.py").write_text(RECORDED_CLIENT)
    (app / "linear_app" / "recorded_server.py").write_text(RECORDED_SERVER.replace("RECORDS", str(records)))
    settings = (app / "pyproject.toml").read_text()
    for ours, theirs in (("recorded_server:app", "server_app:app"), ("recorded_client:app", "client_app:app")):
        assert f"linear_app.{theirs}" in settings
        settings = settings.replace(f"linear_app.{theirs}", f"linear_app.{ours}")
    settings = settings.replace('"federation.npz"', f'"{records / "federation.npz"}"')
    (app / "pyproject.toml").write_text(f'{settings}records = "{records}"\n')
    return records


def server(records: Path, number: int) -> dict:
    return json.loads((records / f"server-{number}.json").read_text())


def received(records: Path, number: int, client: int) -> np.ndarray:
    return np.load(records / f"received-{number}-{client}.npy")


def clients_of(records: Path, number: int) -> list[int]:
    return [client for client in range(CLIENTS) if (records / f"received-{number}-{client}.npy").exists()]


def run_with_a_loss(running: Federation, records: Path) -> None:
    """Run the app; kill a node when it has its second message, and start it again when the third round is on."""
    run = running.start("run", "flwr", "run", str(records.parent / "app"), "here", "--stream")

    def arrived(number: int, client: int | None = None) -> bool:
        assert run.poll() is None, running.log("run")
        there = clients_of(records, number)
        return client in there if client is not None else bool(there)

    wait_until(lambda: arrived(2, LOST), 240, "the second round reaches the node that is to be lost")
    running.kill_node(LOST)
    wait_until(lambda: arrived(3), 240, "the round ends without the lost node")
    running.start_node(LOST)
    assert run.wait(400) == 0, running.log("run")


def test_a_lost_client_comes_back_to_its_own_head(tmp_path: Path, records: Path) -> None:
    with federation(tmp_path, CLIENTS) as running:
        wait_until(
            lambda: all("SuperNode ID" in running.log(f"node-{client}") for client in range(CLIENTS)),
            120,
            "all nodes are connected",
        )
        run_with_a_loss(running, records)
        left = {name: process.pid for name, process in running.processes.items()}
    assert all(not Path(f"/proc/{pid}").exists() for pid in left.values())

    took_part = {number: clients_of(records, number) for number in range(1, ROUNDS + 1)}
    assert took_part[1] == took_part[2] == list(range(CLIENTS))
    assert LOST not in took_part[3]
    assert all(len(there) >= CLIENTS - 1 for there in took_part.values())
    back = min(number for number in range(4, ROUNDS + 1) if LOST in took_part[number])
    assert any("client 5" in who for who in server(records, 2)["failures"])

    for number in range(2, ROUNDS + 1):
        before = {int(client): head for client, head in server(records, number - 1)["heads"].items()}
        for client in took_part[number]:
            np.testing.assert_array_equal(received(records, number, client), before[client])
    own = received(records, back, LOST)
    others = {client: received(records, back, client) for client in took_part[back] if client != LOST}
    assert all(not np.array_equal(own, head) for head in others.values())

    groups = {int(client): group for client, group in server(records, ROUNDS)["groups"].items()}
    assert len({groups[client] for client in range(4)}) == 1
    assert len({groups[client] for client in range(4, 8)}) == 1
    assert groups[0] != groups[4]
    assert not server(records, ROUNDS)["failures"]

    # The noise alone has variance 1; a head of the other group would be off by about 30.
    errors = json.loads((records / "evaluation.json").read_text())
    assert sorted(errors) == [str(client) for client in range(CLIENTS)]
    assert max(row["mse"] for row in errors.values()) < 2.5
