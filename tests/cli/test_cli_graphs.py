"""``steelyard graphs attribute`` on tables and files as a user brings them."""

import json

import numpy as np
import pytest

from steelyard.cli import progress
from steelyard.graphs.graphuat.csbm import generate_csbm


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 1e9)  # on a slow machine they would be among the errors


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A generated graph as two tables and as an npz, with hostile names."""
    path = tmp_path_factory.mktemp("graph")
    arrays = generate_csbm(np.random.default_rng(3), nodes=300, val=60, words=120, topic_words=20)
    np.savez(path / "graph.npz", **arrays)
    (tables := path / "tables").mkdir()
    nodes, width = arrays["x"].shape
    keep = np.arange(min(width, 60))
    parts = np.full(nodes, "", dtype=object)
    for part in ("train", "val", "test"):
        parts[arrays[f"{part}_mask"]] = part
    names = [f"paper \x1b[31m{node}" if node == 0 else f"paper {node}" for node in range(nodes)]
    with (tables / "features.csv").open("w", encoding="utf-8") as file:
        file.write("paper," + ",".join(f"word{place}" for place in keep) + ",label,split\n")
        for node in range(nodes):
            row = ",".join(f"{value:g}" for value in arrays["x"][node, keep])
            file.write(f"{names[node]},{row},class{arrays['y'][node]},{parts[node]}\n")
    with (tables / "edges.csv").open("w", encoding="utf-8") as file:
        file.write("from,to\n")
        for u, v in arrays["edge_index"].T:
            if u < v:
                file.write(f"{names[u]},{names[v]}\n")
    return path


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    from steelyard.graphs import check_graph
    from steelyard.graphs.graphuat.teachers import build_teacher, save_teacher, train_teacher

    class _Data:
        def __init__(self):
            self.__dict__.update(np.load(folder / "graph.npz"))

    graph = check_graph(_Data())
    made = build_teacher("gcn", graph.x.shape[1], graph.num_classes, seed=0)
    path = tmp_path_factory.mktemp("model") / "gcn.safetensors"
    save_teacher(train_teacher(made, graph, epochs=60), path)
    return path


def test_a_model_and_an_npz_give_an_answer_for_each_node(steelyard, folder, model, tmp_path):
    page = tmp_path / "why.html"
    code, out, err = steelyard(
        "graphs", "attribute", "--data", folder / "graph.npz", "--model", model, "--nodes", "10,42", "--html", page
    )
    assert code == 0, err
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("node ")] == ["node 10", "node 42"]
    assert "Check on the model itself" in out
    text = page.read_text(encoding="utf-8")
    assert "Around node 10" in text
    assert "Around node 42" in text
    assert "<script" not in text


def test_json_has_the_uncertainties_the_scores_and_the_check(steelyard, folder, model):
    code, out, _ = steelyard(
        "graphs", "attribute", "--data", folder / "graph.npz", "--model", model, "--most-uncertain", "3", "--json"
    )
    assert code == 0
    found = json.loads(out)
    entropies = [node["teacher_entropy"] for node in found["nodes"]]
    assert entropies == sorted(entropies, reverse=True)
    assert len(entropies) == 3
    for node in found["nodes"]:
        assert node["total"] == pytest.approx(node["aleatoric"] + node["epistemic"], abs=1e-6)
        assert set(node["scores"]) == {"feature", "structure", "coverage"}
    assert found["removal"]["ks"] == [1, 2, 3]


def test_tables_are_read_a_model_is_trained_and_kept_and_nodes_have_their_names(steelyard, folder, tmp_path):
    kept = tmp_path / "kept.safetensors"
    words = ("graphs", "attribute", "--data", folder / "tables", "--nodes", "paper 5, paper 7", "--remove", "0")
    code, out, err = steelyard(*words, "--save-model", kept)
    assert code == 0, err
    assert out.startswith("node paper 5: ")
    assert "Check" not in out
    assert kept.is_file()
    code, again, _ = steelyard(*words, "--model", kept)
    assert (code, again) == (0, out)


def test_hostile_names_do_not_steer_the_terminal(steelyard, folder, model, tmp_path):
    page = tmp_path / "p.html"
    code, out, err = steelyard(
        "graphs", "attribute", "--data", folder / "tables", "--most-uncertain", "2", "--html", page
    )
    assert code == 0
    assert "\x1b" not in out + err + page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "10,4200000"), "4200000"),
        (("--nodes", ","), "names no node"),
        (("--nodes", "1", "--most-uncertain", "2"), "exclude each other"),
        (("--fanout", "many"), "--fanout must be all"),
        (("--save-model", "x.safetensors"), "leave --model out"),
        (("--split", "7"), "split"),
    ],
)
def test_wrong_use_is_one_sentence(steelyard, folder, model, words, said):
    code, _, err = steelyard("graphs", "attribute", "--data", folder / "graph.npz", "--model", model, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("data", "said"), [("coro", "Did you mean 'cora'?"), ("nowhere.npz", "no file or folder"), ("broken.npz", "broken")]
)
def test_data_that_cannot_be_used(steelyard, tmp_path, monkeypatch, data, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    code, _, err = steelyard("graphs", "attribute", "--data", data)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "graph.pt"), "numpy.savez('graph.npz'"),
        (("--data", "edges.csv"), "--features"),
        (("--data", "bare.npz", "--model", "model.pt"), "no labels"),
        (("--data", "labelled.npz"), "'train_mask'"),
        (("--data", "whole.npz", "--model", "model.pt"), "save_file(model.state_dict()"),
    ],
)
def test_what_a_file_lacks_is_said_in_words_of_files(steelyard, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    for name in ("graph.pt", "model.pt", "edges.csv"):
        (tmp_path / name).write_text("a,b\n0,1\n", encoding="utf-8")
    bare = {"x": np.eye(4, dtype=np.float32), "edge_index": np.array([[0, 1], [1, 2]])}
    labelled = {**bare, "y": np.array([0, 1, 0, 1])}
    np.savez(tmp_path / "bare.npz", **bare)
    np.savez(tmp_path / "labelled.npz", **labelled)
    np.savez(tmp_path / "whole.npz", **labelled, train_mask=np.array([True, True, False, False]))
    code, _, err = steelyard("graphs", "attribute", *words)
    assert code == 2
    assert said in err


def test_without_labels_and_without_a_model_there_is_nothing_to_explain(steelyard, tmp_path):
    np.savez(tmp_path / "g.npz", x=np.eye(4, dtype=np.float32), edge_index=np.array([[0, 1], [1, 2]]))
    code, _, err = steelyard("graphs", "attribute", "--data", tmp_path / "g.npz")
    assert code == 2
    assert "no labels" in err


def test_help_has_an_example(steelyard):
    code, out, _ = steelyard("graphs", "attribute", "--help")
    assert code == 0
    assert "Example: steelyard graphs attribute --data graph.npz" in out
