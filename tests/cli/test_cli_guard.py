import json

import pytest

from steelyard.cli import guard, guard_figures, local_model
from steelyard.guard import defense_success_probability
from steelyard.models import tiny_random_lm


@pytest.fixture
def tiny(monkeypatch):
    """The tiny random model in the place of every local one."""
    lm = tiny_random_lm()
    for module in (guard, guard_figures, local_model):
        monkeypatch.setattr(module, "local_model", lambda model: lm)
    return lm


def test_commands():
    assert [command.name for command in guard.app.registered_commands] == [
        "serve", "demo", "score", "certify", "replay",
    ]  # fmt: skip


def test_certify_a_known_probability(steelyard):
    code, out, err = steelyard("guard", "certify", "--p", 0.2, "--n", 9, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["success"] == defense_success_probability(0.2, 9)
    assert found["bounds"][0] <= found["success"] <= found["bounds"][1]
    assert found["copies_needed"] == 7
    code, out, _ = steelyard("guard", "certify", "--p", 0.2)
    assert "0.980419 (exactly)" in out
    assert "7 copies" in out


def test_certify_where_voting_harms(steelyard):
    code, out, err = steelyard("guard", "certify", "--p", 0.6)
    assert code == 0
    assert "no number of copies" in out
    assert err.startswith("note: ")


def test_certify_tells_too_many_copies_from_none(steelyard):
    _, out, _ = steelyard("guard", "certify", "--p", 0.49999, "--delta", 1e-300)
    assert "no number of copies" not in out
    assert "more than 10001 copies" in out
    assert "p at most 3.8e-61 with these copies" in out


def test_certify_shows_what_is_small(steelyard):
    _, out, _ = steelyard("guard", "certify", "--jailbroken", 3, "--samples", 99999999999999999999)
    assert "were jailbroken (3.0e-20)" in out
    assert "at most 1.0e-19" in out
    assert "at least 0.999999\n" in out


def test_certify_names_ties_and_counts_one_copy(steelyard):
    _, out, err = steelyard("guard", "certify", "--p", 0.2, "--n", 8)
    assert "a tie (4 of 8) counts as a refusal" in err
    _, out, err = steelyard("guard", "certify", "--p", 0.01, "--n", 1)
    assert "vote of 1 copy" in out
    assert "1 copy (the least odd number)" in out
    assert err == ""


def test_certify_samples_fresh_copies_of_a_prompt(steelyard, tiny, monkeypatch):
    asked = []
    monkeypatch.setattr(tiny, "generate", lambda prompts, **_: asked.extend(prompts) or ["Of course."] * len(prompts))
    words = ("guard", "certify", "--prompt", "Tell me about the moon, please.", "--samples", 20, "--n", 3)
    code, out, _ = steelyard(*words, "--max-tokens", 2, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["n"], found["n_samples"]) == (3, 20)
    assert found["jailbroken"] == 20
    assert len(set(asked)) > 1


def test_certify_from_samples_never_rounds_up(steelyard):
    words = ("guard", "certify", "--jailbroken", 3, "--samples", 200)
    code, out, _ = steelyard(*words)
    assert code == 0
    shown = float(out.rsplit(maxsplit=1)[1])
    success = json.loads(steelyard(*words, "--json")[1])["success"]
    assert success - 1e-6 < shown <= success < 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "either --p, or --jailbroken"),
        (("--prompt", "x"), "go together"),
        (("--p", 0.1, "--prompt", "x"), "either --p"),
        (("--p", 0.1, "--samples", 9), "go together"),
        (("--p", 0.1, "--jailbroken", 1, "--samples", 9), "either --p"),
        (("--jailbroken", 1), "go together"),
        (("--p", 20), "fraction between 0 and 1"),
        (("--jailbroken", 9, "--samples", 3), "3"),
        (("--p", 0.1, "--gamma", 1), "gamma"),
    ],
)
def test_certify_refuses(steelyard, words, said):
    code, _, err = steelyard("guard", "certify", *words)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


ROWS = [
    {"question": "Where?", "response": "in the north of it", "context": "It lies in the north.", "label": 0},
    {"question": "Who?", "response": "nobody knows", "label": 1},
    {"question": "When?"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_score(steelyard, tiny, tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    code, out, _ = steelyard("guard", "score", path, "--json")
    assert code == 0
    found = json.loads(out)
    from steelyard.guard import EmbeddingDiscrepancy

    expected = EmbeddingDiscrepancy(tiny).score(["Where?", "Who?"], ["in the north of it", "nobody knows"],
                                                ["It lies in the north.", None])  # fmt: skip
    assert [row["score"] for row in found["rows"][:2]] == pytest.approx(list(expected), rel=1e-4)
    assert found["rows"][2]["response"]  # answered by the model
    assert [row["label"] for row in found["rows"]] == [False, True, None]
    assert (found["model"], found["layer"], found["pool"]) == ("SmolLM2-135M-Instruct", [1], "mean")
    assert set(found["auroc"]) == {"score", "length"}
    code, out, err = steelyard("guard", "score", path, "--pool", "token")
    assert code == 0
    assert "row 1: Where? -> in the north of it" in out
    assert "2 labelled rows (0.5 = guessing" in out
    assert "length of the answer alone  0.000" in out
    assert "cannot be compared" in err


def test_score_of_an_empty_answer_is_none(steelyard, tiny, tmp_path, monkeypatch):
    from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy, ScoredAnswer

    monkeypatch.setattr(EmbeddingDiscrepancy, "answer_and_score", lambda *_: [ScoredAnswer("", float("nan"))])
    path = write(tmp_path / "rows.jsonl", [{"question": "When?", "label": 1}, ROWS[0]])
    code, out, err = steelyard("guard", "score", path, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["rows"][0]["score"] is None
    assert found["auroc"] is None
    assert "        -  row 1" in steelyard("guard", "score", path)[1]


@pytest.mark.parametrize("black_box", [False, True])
def test_score_of_an_empty_response_is_null_with_a_note(steelyard, tiny, tmp_path, black_box):
    path = write(tmp_path / "rows.jsonl", [{"question": "When?", "response": " ", "label": 1}, *ROWS[:2]])
    how = ("--black-box",) if black_box else ()
    code, out, err = steelyard("guard", "score", path, "--json", *how)
    assert code == 0, err
    first, *others = json.loads(out)["rows"]
    assert (first["score"], first["response"]) == (None, "")
    assert "empty" in first["note"]
    assert all(row["score"] is not None and "note" not in row for row in others)
    assert "1 empty response has no score" in steelyard("guard", "score", path, *how)[2]


def test_score_checks_the_pool_before_a_model_is_loaded(steelyard, tmp_path, monkeypatch):
    monkeypatch.setattr(guard_figures, "local_model", lambda model: pytest.fail("loaded"))
    code, _, err = steelyard("guard", "score", write(tmp_path / "rows.jsonl", ROWS), "--pool", "median")
    assert code == 2
    assert "--pool must be one of mean, last, token" in err


def test_score_shows_hostile_text_as_text(steelyard, tiny, tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"question": "\x1b[31mred\nline", "response": "\x07bell"}])
    code, out, _ = steelyard("guard", "score", path)
    assert code == 0
    assert "\x1b" not in out
    assert "\x07" not in out


def test_score_refuses(steelyard, tiny, tmp_path):
    code, _, err = steelyard("guard", "score", write(tmp_path / "rows.jsonl", [{"question": "Q?"}]), "--black-box")
    assert code == 2
    assert "every row needs a 'response'" in err
    code, _, err = steelyard("guard", "score", tmp_path / "none.jsonl")
    assert code == 2
    code, _, err = steelyard("guard", "score", write(tmp_path / "rows.jsonl", ROWS), "--layer", "9")
    assert code == 2
    assert "layer" in err


ARTIFACT = {
    "jailbreaks": [{"prompt": f"Tell me about number {index}, please."} for index in range(3)] + [{"prompt": None}]
}


def test_replay(steelyard, tiny, tmp_path, monkeypatch):
    path = tmp_path / "artifact.json"
    path.write_text(json.dumps(ARTIFACT))
    words = ("guard", "replay", path, "--n", 3, "--max-tokens", 4, "--kept", tmp_path / "kept.jsonl", "--json")
    code, out, _ = steelyard(*words)
    assert code == 0
    found = json.loads(out)
    assert (found["prompts"], found["without_prompt"]) == (3, 1)
    lines = {line["defence"]: line for line in found["defences"]}
    assert list(lines) == ["none", "rectify", "smoothllm", "dr"]
    assert lines["none"]["calls_per_prompt"] == lines["rectify"]["calls_per_prompt"] == 1
    assert lines["smoothllm"]["calls_per_prompt"] == 3
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "generate", lambda *_, **__: pytest.fail("asked again"))
        assert steelyard(*words)[1] == out
    code, out, err = steelyard("guard", "replay", path, "--n", 3, "--max-tokens", 4, "--defences", "none", "--limit", 2)
    assert code == 0
    assert "1 rows without a prompt" in err
    assert out.splitlines()[1].split()[:2] == ["none", "2"]


def test_replay_goes_on_without_the_model_when_all_is_kept(steelyard, tiny, tmp_path, monkeypatch):
    path, kept, answers = tmp_path / "artifact.json", tmp_path / "kept.jsonl", tmp_path / "answers.jsonl"
    path.write_text(json.dumps(ARTIFACT))
    words = ("guard", "replay", path, "--n", 3, "--max-tokens", 4, "--kept", kept, "--answers", answers)
    words = (*words, "--defences", "none,dr", "--rectify", "llm")
    _, out, err = steelyard(*words)
    assert [len(line.split()) for line in out.splitlines()[1:]] == [7, 7]
    assert float(out.splitlines()[2].split()[-1]) == 3
    assert "is one more call" in err
    assert [json.loads(line)["defence"] for line in answers.read_text().splitlines()] == ["none"] * 3 + ["dr"] * 3
    monkeypatch.setattr(local_model, "local_model", lambda model: pytest.fail("loaded"))
    _, again, err = steelyard(*words)
    assert again == out
    assert "6 of 6 outcomes are kept; their answers are not asked for again" in err


@pytest.mark.parametrize(
    "other",
    [("--judge", "smoothllm"), ("--n", 5), ("--q", 0.2), ("--rectify", "llm"), ("--max-tokens", 5), ("--seed", 1)],
)
def test_what_is_kept_holds_for_the_same_command_only(steelyard, tiny, tmp_path, other):
    path, kept = tmp_path / "artifact.json", tmp_path / "kept.jsonl"
    path.write_text(json.dumps(ARTIFACT))
    words = ("guard", "replay", path, "--n", 3, "--max-tokens", 4, "--kept", kept, "--defences", "none")
    for options, held in (((), 3), ((), 3), (other, 6)):
        assert steelyard(*words, *options)[0] == 0
        assert len(kept.read_text().splitlines()) == held


@pytest.mark.parametrize("option", ["--kept", "--answers"])
def test_replay_does_not_write_into_its_artifact(steelyard, tiny, tmp_path, option):
    path = tmp_path / "artifact.json"
    path.write_text(json.dumps(ARTIFACT))
    code, _, err = steelyard("guard", "replay", path, option, path, "--defences", "none")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{option} are one file" in err
    assert json.loads(path.read_text()) == ARTIFACT


def test_replay_interrupted(steelyard, tiny, tmp_path, monkeypatch):
    path, kept = tmp_path / "artifact.json", tmp_path / "kept.jsonl"
    path.write_text(json.dumps(ARTIFACT))
    calls, generate = [], tiny.generate

    def breaks(prompts, **how):
        calls.append(prompts)
        if len(calls) % 2 == 0:
            raise KeyboardInterrupt
        return generate(prompts, **how)

    monkeypatch.setattr(tiny, "generate", breaks)
    words = ("guard", "replay", path, "--n", 3, "--max-tokens", 4, "--defences", "none,smoothllm")
    code, _, err = steelyard(*words, "--kept", kept)
    assert code == 130
    assert "interrupted; 3 of 6 outcomes are kept; the same command goes on" in err
    code, _, err = steelyard(*words)
    assert code == 130
    assert "interrupted; nothing is kept" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--defences", ","), "names none"),
        (("--defences", "drr"), "Did you mean 'dr'?"),
        (("--judge", "harsh"), "judge"),
        (("--upstream", "http://127.0.0.1:9/v1"), "--upstream needs --model"),
        (("--q", "10"), "for 10 percent say 0.1"),
        (("--rectify", "grammar"), "rectify"),
    ],
)
def test_replay_refuses(steelyard, tiny, tmp_path, words, said):
    path = tmp_path / "artifact.json"
    path.write_text(json.dumps(ARTIFACT))
    code, _, err = steelyard("guard", "replay", path, *words)
    assert code == 2
    assert said in err


@pytest.fixture
def served(monkeypatch):
    """What would be served, instead of serving it."""
    from steelyard.serve import guard_page, guard_proxy

    kept = {}
    monkeypatch.setattr(guard_proxy, "run", lambda app, port: kept.update(app=app, port=port))
    monkeypatch.setattr(guard_page, "run", lambda app, port, open_: kept.update(app=app, port=port, open=open_))
    return kept


def post(app, path, payload):
    from starlette.testclient import TestClient

    with TestClient(app, base_url="http://127.0.0.1") as client:
        return client.post(path, json=payload)


def get(app, path):
    from starlette.testclient import TestClient

    with TestClient(app, base_url="http://127.0.0.1") as client:
        return client.get(path).text


CHAT = {"messages": [{"role": "user", "content": "Tell me about the moon, please."}], "max_tokens": 4}


def test_serve_the_local_model(steelyard, tiny, served):
    code, _, _ = steelyard("guard", "serve", "--n", 3, "--port", 0, "--detect")
    assert code == 0
    answer = post(served["app"], "/v1/chat/completions", CHAT).json()
    assert len(answer["x_smoothing"]["votes"]) == 3
    assert "x_discrepancy" in answer
    assert answer["model"] == "SmolLM2-135M-Instruct"


@pytest.mark.parametrize("defence", ["dr", "smoothllm", "paper"])
def test_serve_disrupts_every_turn_of_the_user(steelyard, tiny, served, monkeypatch, defence):
    asked, generate = [], tiny.generations
    monkeypatch.setattr(tiny, "generations", lambda prompts, **how: asked.extend(prompts) or generate(prompts, **how))
    steelyard("guard", "serve", "--defence", defence, "--n", 3, "--q", 0.4)
    early = "An attack may stand up here, with something harmless behind it."
    chat = [{"role": "user", "content": early}, {"role": "assistant", "content": "Yes."}, *CHAT["messages"]]
    assert post(served["app"], "/v1/chat/completions", {**CHAT, "messages": chat}).status_code == 200
    copies = [prompt for prompt in asked if len(prompt) == 3 and prompt[1] == chat[1]]
    assert len(copies) == 3
    changed = sum(copy[0]["content"] != early for copy in copies)
    assert changed >= (2 if defence == "paper" else 3)  # its random noise may delete no word of a text


@pytest.mark.parametrize(
    ("words", "said"),
    [((), True), (("--defence", "paper"), True), (("--rectify", "llm"), False), (("--defence", "smoothllm"), False)],
)
def test_serve_says_what_spelling_does_before_it_serves(steelyard, tiny, served, words, said):
    _, _, err = steelyard("guard", "serve", *words)
    assert ("drops words it does not know" in err) == said
    assert ("loading the dictionary" in err) == said
    assert len(err.splitlines()) == 2 * said


def test_serve_with_a_threshold(steelyard, tiny, served):
    steelyard("guard", "serve", "--defence", "none", "--detect", "--threshold", -5)
    found = post(served["app"], "/v1/chat/completions", CHAT).json()["x_discrepancy"]
    assert (found["threshold"], found["hallucinated"]) == (-5, True)
    for words in (("--threshold", 1), ("--detect", "--threshold", "nan")):
        code, _, err = steelyard("guard", "serve", *words)
        assert code == 2
        assert "--threshold must be a finite number, and needs --detect" in err


def test_serve_disrupts_short_prompts_and_shows_no_warning(steelyard, tiny, served, capsys):
    steelyard("guard", "serve", "--n", 3, "--rectify", "llm")
    chat = {**CHAT, "messages": [{"role": "user", "content": "hi"}]}
    record = post(served["app"], "/v1/chat/completions", chat).json()["x_smoothing"]
    assert isinstance(record["complied"], bool)
    assert record["counts"]["undisrupted"] < 3
    assert "Warning" not in capsys.readouterr().err


def test_serve_without_a_defence(steelyard, tiny, served):
    _, _, err = steelyard("guard", "serve", "--defence", "none")
    assert "guards nothing" in err
    answer = post(served["app"], "/v1/chat/completions", CHAT).json()
    assert "x_smoothing" not in answer


def test_serve_asks_for_the_clients_key(steelyard, tiny, served, monkeypatch):
    monkeypatch.setenv("STEELYARD_CLIENT_KEY", "sesame")
    steelyard("guard", "serve", "--defence", "none")
    assert post(served["app"], "/v1/chat/completions", CHAT).status_code == 401


def test_serve_refuses(steelyard, tiny, served):
    assert steelyard("guard", "serve", "--defence", "wall")[0] == 2
    assert steelyard("guard", "serve", "--upstream", "file:///etc")[0] == 2
    code, _, err = steelyard("guard", "serve", "--upstream", "http://127.0.0.1:9/v1", "--rectify", "llm")
    assert code == 2
    assert "--upstream needs --model" in err


def test_demo(steelyard, tiny, served):
    code, _, _ = steelyard("guard", "demo", "--n", 3, "--max-tokens", 4)
    assert code == 0
    shown = post(served["app"], "/ask", {"prompt": "Tell me about the moon, please."}).json()
    assert len(shown["copies"]) == 3
    assert shown["calls"] >= 2
    complied = sum(copy["vote"] for copy in shown["copies"])
    assert shown["bound"].startswith("Most copies complied; nothing" if complied > 1 else "From these 3 copies")
    assert "Equal copies are asked once" in get(served["app"], "/")
