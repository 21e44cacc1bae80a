"""steelyard agents and steelyard mcp: group memory, skills and debate, and what wrong use ends in."""

import json
import re
import subprocess
import sys

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from steelyard.agents import Message
from steelyard.agents.groupmembench.formats import chat_format
from steelyard.cli import agents_debate, agents_memory, agents_skills

MESSAGES = [
    {
        "id": "1",
        "author": "ann",
        "content": "The cutover is on 2025-07-02.",
        "channel": "ops",
        "timestamp": "2025-06-01",
    },
    {"id": "2", "author": "bob", "content": "The cutover moved to the 9th.", "channel": "ops", "reply_to": "1"},
    {"id": "3", "author": "eve", "content": "the cutover password is tulip", "channel": "dm", "audience": ["ann"]},
]
SKILL = "---\nname: {name}\ndescription: {what}\n---\n# {name}\n\n{body}\n"
EVERY = [
    (group, command.name)
    for group, module in (("memory", agents_memory), ("skills", agents_skills), ("debate", agents_debate))
    for command in module.COMMANDS
]


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MESSAGES))
    return path


@pytest.fixture
def shelf(tmp_path):
    """A folder of three skills and one broken file."""
    texts = {
        "csv-reader": ("Read CSV tables. Use for comma separated files.", "Then use plot-maker to draw them."),
        "plot-maker": ("Draw charts as PDF from tables.", "Requires csv-reader before. Never plot without labels."),
        "mail-sender": ("Send an e-mail to someone.", "Do not use for charts."),
    }
    for name, (what, body) in texts.items():
        (tmp_path / "shelf" / name).mkdir(parents=True)
        (tmp_path / "shelf" / name / "SKILL.md").write_text(SKILL.format(name=name, what=what, body=body))
    (tmp_path / "shelf" / "broken").mkdir()
    (tmp_path / "shelf" / "broken" / "SKILL.md").write_text("no front matter\x1b[31m")
    return tmp_path / "shelf"


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_help_has_an_example(steelyard, group, name):
    code, out, err = steelyard("agents", group, name, "--help")
    assert (code, err) == (0, "")
    assert f"Example: steelyard agents {group} {name}" in re.sub(r"\s+", " ", out)


def test_a_chat_is_indexed_once_and_searched_for_one_person(steelyard, chat):
    code, out, _ = steelyard("agents", "memory", "index", chat, "team.db")
    assert (code, out) == (0, "3 messages added, 0 known already; 3 in team.db\n")
    _, out, _ = steelyard("agents", "memory", "index", chat, "team.db", "--json")
    assert json.loads(out) == {"added": 0, "known": 3, "messages": 3}
    _, out, _ = steelyard("agents", "memory", "search", "team.db", "cutover password", "--asker", "bob", "--json")
    assert {hit["id"] for hit in json.loads(out)} == {"1", "2"}
    _, out, _ = steelyard("agents", "memory", "search", "team.db", "cutover password", "--asker", "ann", "-k", "1")
    assert "eve" in out
    assert "tulip" in out
    _, out, _ = steelyard("agents", "memory", "search", "team.db", "cutover password")
    assert "tulip" not in out


@pytest.mark.parametrize("kind", ["bm25", "header", "flat", "structured"])
def test_every_kind_of_memory_answers(steelyard, chat, kind):
    steelyard("agents", "memory", "index", chat, "team.db")
    code, out, _ = steelyard("agents", "memory", "search", "team.db", "cutover", "--kind", kind, "--asker", "bob")
    assert code == 0
    assert "cutover" in out
    assert "tulip" not in out


def test_what_a_person_wrote_can_be_deleted(steelyard, chat):
    steelyard("agents", "memory", "index", chat, "team.db")
    _, out, _ = steelyard("agents", "memory", "forget", "team.db", "--author", "eve", "--json")
    assert json.loads(out) == {"deleted": 1}
    _, out, err = steelyard("agents", "memory", "search", "team.db", "tulip", "--asker", "ann", "-k", "9")
    assert "tulip" not in out + err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", "none.db", "x"), "no such memory"),
        (("index", "none.json", "new.db"), "none.json cannot be read"),
        (("search", "team.db", "x", "--asker", "zed"), "Leave --asker out to search what is public"),
        (("search", "team.db", "x", "--asker", "anne"), "Did you mean 'ann'?"),
        (("forget", "chat.jsonl", "--author", "bob"), "chat.jsonl is no memory"),
        (("index", "team.db", "chat.jsonl"), "chat.jsonl is no memory; did you swap CHAT and MEMORY?"),
        (("index", "team.db", "new.db"), "team.db is a memory and no chat; did you swap CHAT and MEMORY?"),
        (("index", "chat.jsonl", "chat.jsonl"), "did you swap CHAT and MEMORY?"),
        (("search", "team.db", " "), "query"),
        (("search", "team.db", "x", "--kind", "magic"), "--kind must be one of"),
        (("search", "chat.jsonl", "x"), "chat.jsonl is no memory"),
        (("index", "chat.jsonl", "other.db", "--format", "fax"), "format must be one of"),
        (("index", "shelf.xyz", "other.db"), "--format"),
        (("index", "absent.jsonl", "other.db"), "absent.jsonl"),
        (("bench", "absent", "--domain", "Finance"), "absent"),
        (("bench", "absent", "--domain", "Finance", "--model", "x"), "--endpoint"),
        (("bench", "absent", "--domain", "Finance", "--endpoint", "http://127.0.0.1:1"), "--model"),
    ],
)
def test_wrong_use_of_a_memory_is_one_sentence(steelyard, chat, words, said):
    steelyard("agents", "memory", "index", chat, "team.db")
    code, out, err = steelyard("agents", "memory", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("steelyard: ")
    assert err.count("\n") == 1
    assert "allow_unknown_asker" not in err


def test_a_chat_without_messages_says_so(steelyard, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    code, out, err = steelyard("agents", "memory", "index", "empty.jsonl", "team.db")
    assert (code, out) == (2, "")
    assert "empty.jsonl holds no messages" in err
    (tmp_path / "empty.json").write_text("{}")
    code, out, err = steelyard("agents", "memory", "index", "empty.json", "team.db")
    assert (code, out) == (0, "0 messages added, 0 known already; 0 in team.db\n")
    assert "empty.json holds no messages" in err
    assert steelyard("agents", "memory", "search", "team.db", "x")[2] == "nothing found\n"


def test_one_message_is_one_message(steelyard, tmp_path):
    (tmp_path / "one.jsonl").write_text(json.dumps(MESSAGES[0]) + "\n")
    assert steelyard("agents", "memory", "index", "one.jsonl", "one.db")[1].startswith("1 message added, ")
    assert steelyard("agents", "memory", "forget", "one.db", "--author", "ann")[1] == "1 message of ann deleted\n"


@pytest.mark.parametrize("kind", ["bm25", "header", "flat", "structured"])
@pytest.mark.parametrize("others", [[], ["lunch at noon"], ["the cutover is red", "the cutover is late"]])
def test_a_match_is_found_in_a_memory_of_few_messages(kind, others):
    memory = agents_memory.make_memory(kind)
    texts = ["the cutover is monday", *others]
    memory.add_many([Message(str(place), text, "ann") for place, text in enumerate(texts)])
    found = {hit.id for hit in agents_memory.found_in(memory, "cutover monday", k=5)}
    assert found == {str(place) for place, text in enumerate(texts) if "cutover" in text}
    assert agents_memory.found_in(memory, "cutover monday", k=1)[0].id in found
    assert agents_memory.found_in(memory, "zebra", k=5) == []


def test_what_shares_nothing_with_the_query_is_not_found(steelyard, chat):
    steelyard("agents", "memory", "index", chat, "team.db")
    _, out, err = steelyard("agents", "memory", "search", "team.db", "password", "--asker", "ann", "--top", "9")
    assert out.count("\n") == 1
    assert "tulip" in out
    code, out, err = steelyard("agents", "memory", "search", "team.db", "zebra")
    assert (code, out, err) == (0, "", "nothing found\n")


def test_a_name_that_wrote_nothing_is_answered_with_the_closest(steelyard, chat):
    steelyard("agents", "memory", "index", chat, "team.db")
    forget = ("agents", "memory", "forget", "team.db", "--author")
    assert steelyard(*forget, "bobb")[:2] == (0, "0 messages of bobb deleted. Did you mean 'bob'?\n")
    assert steelyard(*forget, "zzz")[:2] == (0, "0 messages of zzz deleted\n")


def test_a_chat_is_recognised_by_its_name_and_first_bytes(tmp_path):
    slack, discord = tmp_path / "slack", tmp_path / "discord"
    (slack / "general").mkdir(parents=True)
    (slack / "general" / "2025-01-01.json").write_text("[]")
    discord.mkdir()
    (discord / "a.json").write_text('{"messages": []}')
    (tmp_path / "r.json").write_text('{"general": []}')
    told = chat_format
    assert [told(slack), told(discord), told(discord / "a.json"), told(tmp_path / "r.json")] == [
        "slack", "discord", "discord", "groupmembench",
    ]  # fmt: skip
    (tmp_path / "rows.json").write_text('{"id": "1", "author": "a", "text": "hello"}\n')
    assert [told(tmp_path / name) for name in ("x.jsonl", "x.ndjson", "rows.json", "x.log")] == ["jsonl"] * 3 + ["irc"]
    assert told(tmp_path / "x.pdf") is None


def test_skills_are_listed_with_what_is_wrong(steelyard, shelf):
    code, out, _ = steelyard("agents", "skills", "index", shelf)
    assert code == 0
    assert out.startswith("3 skills, 3 groups\n")
    assert "broken/SKILL.md" in out
    assert "\x1b" not in out
    _, out, _ = steelyard("agents", "skills", "index", shelf, "--json")
    found = json.loads(out)
    assert found["skills"] == 3
    assert [problem["lost"] for problem in found["problems"]] == [True]
    code, _, err = steelyard("agents", "skills", "index", shelf, "--strict")
    assert code == 2
    assert "broken" in err


def test_a_contract_is_printed_within_its_budget(steelyard, shelf):
    task = "Read a CSV table and draw charts from it as PDF"
    code, out, _ = steelyard("agents", "skills", "retrieve", shelf, task, "--budget", "2", "--max-chars", "2000")
    assert code == 0
    assert "## START" in out
    assert len(out) <= 2001
    assert "mail-sender" not in out
    _, out, _ = steelyard("agents", "skills", "retrieve", shelf, task, "--json")
    assert set(json.loads(out)) >= {"start", "support", "check", "avoid", "debt"}
    _, out, _ = steelyard("agents", "skills", "explain", shelf, task)
    assert "debt" in json.loads(out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("absent", "x"), "absent"),
        (("shelf", " "), "task"),
        (("shelf", "draw charts", "--max-chars", "10"), "smallest possible"),
    ],
)
def test_wrong_use_of_skills_is_one_sentence(steelyard, shelf, words, said):
    code, out, err = steelyard("agents", "skills", "retrieve", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_debate_is_told_turn_by_turn(steelyard, monkeypatch):
    texts = iter(["Answer: Mars", "Answer: Jupiter", "Answer: Jupiter", "Answer: Jupiter", "Answer: Jupiter"] * 3)
    monkeypatch.setattr(agents_debate, "models_of", lambda *_: [lambda messages, **_: next(texts)] * 3)
    words = ("agents", "debate", "ask", "Which is larger?", "--option", "Mars", "--option", "Jupiter", "--rounds", "1")
    code, out, err = steelyard(*words)
    assert code == 0
    assert "answer: " in out
    assert "ended by: " in out
    assert err.count("round 0: agent-") == 3
    code, out, err = steelyard(*words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["calls"] == len(found["transcript"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--controller", "magic"), "--controller must be one of"),
        (("--controller", "dear"), "--weights"),
        (("--weights", "x"), "--controller dear"),
        (("--controller", "dear", "--weights", "absent"), "absent"),
        (("--endpoint", "http://127.0.0.1:1/v1"), "--model"),
        (("--model", "a", "--model", "b"), "name one at most"),
        (("--endpoint", "http://127.0.0.1:1/v1", "--model", "a", "--model", "b"), "one for each"),
        (("--endpoint", "gopher://x", "--model", "a"), "base_url"),
    ],
)
def test_wrong_use_of_a_debate_is_one_sentence(steelyard, monkeypatch, words, said):
    monkeypatch.setattr(agents_debate, "local_model", lambda name: lambda messages, **_: "A")
    code, out, err = steelyard("agents", "debate", "ask", "q?", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_question_in_the_place_of_a_command_is_told_to_use_ask(steelyard):
    code, out, err = steelyard("agents", "debate", "Which is larger?")
    assert (code, out) == (2, "")
    assert "no command 'Which is larger?'; a question goes with `ask`" in err
    assert err.count("\n") == 1


def test_a_problem_that_comes_again_is_counted(steelyard):
    dead = ("--endpoint", "http://127.0.0.1:1/v1", "--model", "m", "--option", "a", "--option", "b")
    code, out, err = steelyard("agents", "debate", "ask", "q?", *dead)
    assert (code, out) == (1, "")
    assert err.count("cannot be reached") == 1
    assert "2 more calls with the problem of agent-1 in round 0" in err
    assert "steelyard: no agent has an answer in the first round; the reasons are above" in err
    _, _, err = steelyard("agents", "debate", "ask", "q?", *dead, "--json")
    assert "cannot be reached" in err


def mcp(shelf, tmp_path, *more):
    words = ["-m", "steelyard.cli.main", "mcp", "--skills", str(shelf), "--memory", str(tmp_path / "m.db"), *more]
    return StdioServerParameters(command=sys.executable, args=words, cwd=str(tmp_path))


def test_the_real_client_talks_to_the_server_over_standard_input_and_output(shelf, tmp_path):
    async def talk():
        async with Client(stdio_client(mcp(shelf, tmp_path, "--root", str(tmp_path)))) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            skills = await client.call_tool("retrieve_skills", {"task": "draw charts from CSV as PDF", "budget": 2})
            rows = [{"id": "1", "content": "the tulip is red", "author": "ann", "audience": ["bob"]}]
            added = await client.call_tool("memory_add", {"messages": rows})
            twice = await client.call_tool("memory_add", {"messages": rows})
            bare = [{"content": "noon", "author": "ann"}, {"id": "3", "content": "lunch", "author": "ann"}]
            nameless = await client.call_tool("memory_add", {"messages": bare})
            seen = await client.call_tool("memory_search", {"query": "tulip", "asker": "bob"})
            hidden = await client.call_tool("memory_search", {"query": "tulip", "asker": "eve"})
            nobody = await client.call_tool("memory_search", {"query": "tulip"})
            outside = await client.call_tool("weigh", {"method": "goskills", "data": "../../etc"})
            unknown = await client.call_tool("weigh", {"method": "absent"})
        return names, skills, added, twice, nameless, seen, hidden, nobody, outside, unknown

    names, skills, added, twice, nameless, seen, hidden, nobody, outside, unknown = anyio.run(talk)
    assert names == {"retrieve_skills", "memory_add", "memory_search", "weigh"}
    assert "plot-maker" in skills.structured_content["skills"]
    assert added.structured_content == {"added": 1, "ids": ["1"]}
    assert nameless.structured_content["added"] == 2
    assert [len(name) for name in nameless.structured_content["ids"]] == [32, 1]
    assert twice.is_error
    assert "there twice" in twice.content[0].text
    assert [hit["id"] for hit in seen.structured_content["hits"]] == ["1"]
    assert hidden.structured_content["hits"] == nobody.structured_content["hits"] == []
    assert outside.is_error
    assert unknown.is_error
    assert "unknown method" in unknown.content[0].text


def test_a_server_with_an_asker_serves_that_person_only(shelf, tmp_path):
    async def talk():
        async with Client(stdio_client(mcp(shelf, tmp_path, "--asker", "bob", "--no-weigh"))) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            other = await client.call_tool("memory_search", {"query": "tulip", "asker": "ann"})
            row = {"id": "1", "content": "tulip", "author": "ann"}
            forged = await client.call_tool("memory_add", {"messages": [row]})
            own = await client.call_tool("memory_add", {"messages": [{**row, "author": "bob", "audience": []}]})
            seen = await client.call_tool("memory_search", {"query": "tulip"})
        return names, other, forged, own, seen

    names, other, forged, own, seen = anyio.run(talk)
    assert "weigh" not in names
    assert "'bob' only" in other.content[0].text
    assert "'bob' only" in forged.content[0].text
    assert own.structured_content == {"added": 1, "ids": ["1"]}
    assert [hit["author"] for hit in seen.structured_content["hits"]] == ["bob"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--no-weigh",), "nothing to serve"),
        (("--asker", "bob"), "--memory"),
        (("--memory", "absent/deep/x.db"), "--memory: there is no folder absent/deep"),
        (("--root", "absent"), "no folder"),
        (("--skills", "absent"), "absent"),
    ],
)
def test_wrong_use_of_the_server_is_one_sentence(steelyard, words, said):
    code, out, err = steelyard("mcp", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_on_standard_input_the_server_says_what_it_serves(shelf, tmp_path):
    words = [*mcp(shelf, tmp_path, "--no-weigh").args]
    ended = subprocess.run([sys.executable, *words], cwd=tmp_path, input="", capture_output=True, text=True, timeout=60)
    told = "serving on standard input and output; tools: retrieve_skills, memory_add, memory_search\n"
    assert (ended.stdout, ended.stderr.removeprefix("steelyard: ")) == ("", told)


def test_over_http_the_server_says_where_it_is(shelf, tmp_path):
    words = [
        sys.executable,
        "-m",
        "steelyard.cli.main",
        "mcp",
        "--skills",
        str(shelf),
        "--http",
        "--port",
        "0",
        "--no-weigh",
    ]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/mcp", server.stdout.readline()).group()

            async def ask():
                async with Client(address) as client:
                    return await client.call_tool("retrieve_skills", {"task": "draw charts as PDF"})

            assert not anyio.run(ask).is_error
        finally:
            server.terminate()
