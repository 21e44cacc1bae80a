"""The MCP server through the package's real client, with plain stand-ins for what it serves."""

import json
import socket
import threading
import time

import anyio
import builders_mcp
import pytest
import uvicorn
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from steelyard.errors import InputError
from steelyard.serve.mcp_server import contract_of, http_app, inside, make_server, safe_options


def call(server, name, arguments):
    async def ask():
        async with Client(server) as client:
            return await client.call_tool(name, arguments)

    return anyio.run(ask)


def said(result):
    assert result.is_error
    return result.content[0].text


@pytest.fixture
def parts():
    return builders_mcp.Skills(), builders_mcp.Memory(), builders_mcp.Weigh()


def test_only_what_was_given_is_served(parts):
    skills, memory, weigh = parts

    async def names(server):
        async with Client(server) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    assert anyio.run(names, make_server(skills)) == {"retrieve_skills"}
    assert anyio.run(names, make_server(memory=memory)) == {"memory_add", "memory_search"}
    every = {"retrieve_skills", "memory_add", "memory_search", "weigh"}
    assert anyio.run(names, make_server(skills, memory, weigh)) == every
    with pytest.raises(InputError, match="nothing to serve"):
        make_server()


def test_results_come_as_structured_content(parts):
    skills, memory, _ = parts
    server = make_server(skills, memory)
    contract = call(server, "retrieve_skills", {"task": "plot a table", "budget": 3, "format": "json"})
    assert contract.structured_content["skills"] == ["plot", "table"]
    assert skills.asked == [("plot a table", 3, "json")]
    rows = [{"id": "1", "content": "hello", "author": "ann", "audience": ["bob"]}]
    assert call(server, "memory_add", {"messages": rows}).structured_content == {"added": 1, "ids": ["1"]}
    assert memory.rows[0]["audience"] == ["bob"]
    found = call(server, "memory_search", {"query": "hello", "asker": "bob", "k": 2})
    assert found.structured_content["hits"][0]["id"] == "1"
    assert memory.asked == [("hello", "bob", 2)]


def test_without_an_asker_the_source_is_asked_for_public_messages_only(parts):
    _, memory, _ = parts
    call(make_server(memory=memory), "memory_search", {"query": "hello"})
    assert memory.asked == [("hello", None, 10)]


@pytest.mark.parametrize(
    ("name", "arguments", "what"),
    [
        ("retrieve_skills", {"task": ""}, "task"),
        ("retrieve_skills", {"task": "x" * 8_001}, "task"),
        ("retrieve_skills", {"task": "x", "budget": 0}, "budget"),
        ("retrieve_skills", {"task": "x", "budget": 33}, "budget"),
        ("retrieve_skills", {"task": "x", "format": "html"}, "format"),
        ("memory_add", {"messages": []}, "messages"),
        ("memory_add", {"messages": [{"id": str(i), "content": "", "author": "a"} for i in range(201)]}, "messages"),
        ("memory_add", {"messages": [{"id": "1", "content": "x" * 20_001, "author": "a"}]}, "content"),
        ("memory_add", {"messages": [{"id": "1", "content": "x"}]}, "author"),
        ("memory_add", {"messages": [{"id": "1", "content": "x", "author": "a", "path": "/etc/passwd"}]}, "path"),
        ("memory_search", {"query": "x", "k": 0}, "k"),
        ("memory_search", {"query": "x", "k": 10**9}, "k"),
        ("memory_search", {"query": "x" * 8_001}, "query"),
        ("memory_search", {"query": "x", "asker": ""}, "asker"),
        ("weigh", {"method": "../../etc"}, "method"),
        ("weigh", {"method": "os.path"}, "method"),
        ("weigh", {"method": "nfi", "seeds": 1}, "seeds"),
        ("weigh", {"method": "nfi", "seeds": 1_000}, "seeds"),
        ("weigh", {"method": "nfi", "options": {str(i): 1 for i in range(33)}}, "options"),
    ],
)
def test_fields_have_caps(parts, name, arguments, what):
    sentence = said(call(make_server(*parts), name, arguments))
    assert sentence.startswith(f"{name}: ")
    assert what in sentence
    assert "pydantic" not in sentence
    assert "\n" not in sentence
    assert "xxx" not in sentence  # values are the caller's, and long
    assert parts[2].calls == []


def test_an_error_names_few_of_many_wrong_fields(parts):
    rows = [{"content": "x"}] * 9
    sentence = said(call(make_server(*parts), "memory_add", {"messages": rows}))
    assert sentence.startswith("memory_add: messages.0.author: Field required; messages.1.author: ")
    assert sentence.endswith("; and 4 more")


def test_an_id_may_be_left_out(parts):
    _, memory, _ = parts
    added = call(make_server(memory=memory), "memory_add", {"messages": [{"content": "hi", "author": "ann"}]})
    assert added.structured_content == {"added": 1, "ids": ["made"]}
    assert memory.rows[0]["id"] is None


def test_a_weighing_tells_how_many_cells_have_ended(parts):
    told = []

    async def note(progress, total, message):
        told.append((progress, total, message))

    async def ask():
        async with Client(make_server(weigh=parts[2])) as client:
            return await client.call_tool("weigh", {"method": "nfi"}, progress_callback=note)

    assert not anyio.run(ask).is_error
    assert told == [(float(done), 2.0, f"{done} of 2 cells") for done in (0, 1, 2)]


def test_an_error_on_purpose_reaches_the_caller_and_any_other_is_masked(parts):
    skills, _, _ = parts
    skills.error = InputError("task: say what is to be done")
    assert "say what is to be done" in said(call(make_server(skills), "retrieve_skills", {"task": "x"}))
    skills.error = RuntimeError("password=hunter2 in /home/me/secret.py")
    masked = said(call(make_server(skills), "retrieve_skills", {"task": "x"}))
    assert "hunter2" not in masked
    assert "/home" not in masked


def test_an_unknown_tool_is_an_error_not_a_crash(parts):
    assert "nope" in said(call(make_server(*parts), "nope", {}))


def test_hidden_characters_do_not_come_back(parts):
    _, memory, _ = parts
    memory.rows.append({"id": "\x1b[2J1", "content": "a\u202eb\x00\x1b[31m", "author": "ann", "audience": None})
    hit = call(make_server(memory=memory), "memory_search", {"query": "x"}).structured_content["hits"][0]
    assert hit["content"] == "ab[31m"
    assert "\x1b" not in json.dumps(hit)


def test_weighing_is_quick_and_reads_below_the_root_only(parts, tmp_path):
    weigh = parts[2]
    (tmp_path / "rows.csv").write_text("x\n1\n")
    server = make_server(weigh=weigh, root=tmp_path)
    result = call(server, "weigh", {"method": "nfi", "data": "rows.csv", "seeds": 3, "options": {"label": "y"}})
    assert not result.is_error
    assert result.structured_content["verdicts"][0]["outcome"] == "borne out"
    call_ = weigh.calls[0]
    assert call_ == ("nfi", {"data": str(tmp_path / "rows.csv"), "profile": "quick", "seeds": 3, "label": "y"})


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../secret", "link", "absent.csv", "a\0b", "x" * 999]
)
def test_paths_that_leave_the_root_are_refused(parts, tmp_path, name):
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "secret").write_text("s")
    (root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="nothing below"):
        inside(root, name)
    answer = call(make_server(weigh=parts[2], root=root), "weigh", {"method": "nfi", "data": name})
    assert str(tmp_path) not in said(answer)
    assert parts[2].calls == []


def test_a_link_inside_the_root_may_be_read(tmp_path):
    (tmp_path / "rows.csv").write_text("s")
    (tmp_path / "link").symlink_to(tmp_path / "rows.csv")
    assert inside(tmp_path, "link") == (tmp_path / "rows.csv").resolve()


def test_without_a_root_no_file_is_read(parts):
    assert "--root" in said(call(make_server(weigh=parts[2]), "weigh", {"method": "nfi", "data": "x.csv"}))


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "local"},
        {"base_url": "x"},
        {"api_key": "x"},
        {"model": "x"},
        {"store": "x"},
        {"label": "http://169.254.169.254/"},
        {"label": "/etc/passwd"},
        {"label": "~/x"},
        {"label": "../x"},
        {"tasks": "here.txt"},
        {"x": float("nan")},
        {"data": "y"},
    ],
)
def test_options_name_no_host_no_key_and_no_file_elsewhere(tmp_path, monkeypatch, options):
    (tmp_path / "here.txt").write_text("in the working directory, not in the root")
    (tmp_path / "root").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        safe_options(tmp_path / "root", options)
    with pytest.raises(InputError):
        safe_options(None, options)


def test_an_option_that_names_a_file_of_the_root_means_that_file(tmp_path):
    (tmp_path / "tasks.jsonl").write_text("{}")
    options = safe_options(tmp_path, {"tasks": "tasks.jsonl", "label": "y", "k": 3, "fast": True})
    assert options == {"tasks": str(tmp_path / "tasks.jsonl"), "label": "y", "k": 3, "fast": True}


def test_one_weighing_at_a_time(parts):
    weigh = parts[2]
    weigh.wait = threading.Event()
    server = make_server(weigh=weigh)

    async def both():
        async with Client(server) as client, anyio.create_task_group() as group:
            answers = []

            async def ask():
                answers.append(await client.call_tool("weigh", {"method": "nfi"}))

            group.start_soon(ask)
            while not weigh.calls:
                await anyio.sleep(0.01)
            second = await client.call_tool("weigh", {"method": "nfi"})
            weigh.wait.set()
        return second, answers[0]

    second, first = anyio.run(both)
    assert "another weighing" in said(second)
    assert not first.is_error
    assert not call(server, "weigh", {"method": "nfi"}).is_error  # the place is free again


def test_a_contract_without_an_entry_is_answered_as_such():
    answer = contract_of("DEBT: all", {"start": None, "debt": ["csv"]}, [])
    assert (answer.start, answer.skills, answer.debt) == (None, [], ["csv"])


@pytest.fixture
def address(parts):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(http_app(make_server(*parts), port), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}/mcp"
    server.should_exit = True
    thread.join(10)


def test_over_http_with_the_real_client(address):
    result = call(address, "retrieve_skills", {"task": "plot"})
    assert result.structured_content["start"] == "plot"


def test_over_http_other_hosts_origins_and_large_bodies_are_refused(address):
    import httpx

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"accept": "application/json, text/event-stream"}
    assert httpx.post(address, json=body, headers={**headers, "host": "evil.example"}).status_code in (403, 421)
    assert httpx.post(address, json=body, headers={**headers, "origin": "http://evil.example"}).status_code == 403
    huge = httpx.post(
        address, content=b"[" + b" " * (5 * 2**20) + b"]", headers={**headers, "content-type": "application/json"}
    )
    assert huge.status_code == 413
    assert httpx.post(address, content=b"{", headers={**headers, "content-type": "application/json"}).status_code == 400
    assert not call(address, "retrieve_skills", {"task": "plot"}).is_error  # it still answers


def test_a_client_that_asks_for_no_tool_gets_an_error(address):
    async def ask():
        async with Client(address) as client:
            await client.read_resource("file:///etc/passwd")

    with pytest.raises((MCPError, ExceptionGroup)):
        anyio.run(ask)
