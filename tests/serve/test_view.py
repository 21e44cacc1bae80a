import http.client
import json
import socket
import sys
import threading

import builders
import pytest
from fake_store import Store

from steelyard.errors import InputError, StoreError
from steelyard.serve import pages, view


@pytest.fixture(scope="module")
def finished():
    return builders.weighing(builders.gdro_plan(1))


@pytest.fixture
def store(finished):
    return Store(finished, builders.unfinished())


@pytest.fixture
def server(store):
    server = view.make_server(store, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server, path="/", method="GET", host=None, headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for value in host if isinstance(host, list) else [host or f"127.0.0.1:{server.server_port}"]:
        connection.putheader("Host", value)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def raw(server, data):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(data)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received.decode()


ROUTES = ["/", "/api/weighings", "/weighing/{id}", "/api/weighing/{id}/progress"]


def test_listens_on_127_0_0_1_only(server):
    assert server.server_address[0] == "127.0.0.1"


def test_index_lists_all_weighings_with_state(server, store):
    answer, body = ask(server)
    assert answer.status == 200
    for results in store.all.values():
        assert f'href="/weighing/{results.id}"' in body
    assert "finished" in body
    assert "running" in body
    assert "120 of 180" in body


def test_stopped_and_empty_stores(finished):
    rows = tuple(row.model_copy(update={"state": "waiting"}) for row in finished.rows)
    assert "stopped" in pages.index([Store.entry(finished.model_copy(update={"finished": False, "rows": rows}))])
    assert "The store holds no weighing yet." in pages.index([])


def test_api_gives_json(server, store):
    answer, body = ask(server, "/api/weighings")
    assert answer.headers["Content-Type"] == "application/json"
    assert [entry["id"] for entry in json.loads(body)] == list(store.all)
    name = builders.unfinished().id
    state = json.loads(ask(server, f"/api/weighing/{name}/progress")[1])
    assert (state["done"], state["total"], state["finished"]) == (120, 180, False)
    assert len(state["arms"]) == 9
    assert state["cells"]


def test_report_of_a_finished_weighing(server, finished):
    answer, body = ask(server, f"/weighing/{finished.id}")
    assert answer.status == 200
    assert 'id="m1-verdicts"' in body
    assert "script-src 'sha256-" in answer.headers["Content-Security-Policy"]


def test_pages_are_kept_while_nothing_changes(server, store, finished):
    for _ in range(3):
        ask(server, f"/weighing/{finished.id}")
    assert store.reads == 1
    store.all[finished.id] = finished.model_copy(update={"rows": finished.rows[1:]})
    ask(server, f"/weighing/{finished.id}")
    assert store.reads == 2


def test_only_so_many_pages_are_kept(finished, monkeypatch):
    monkeypatch.setattr(view, "_KEPT", 2)
    many = [finished.model_copy(update={"id": f"w{index}", "finished": False}) for index in range(5)]
    served = view.View(Store(*many))
    for results in many:
        served.answer("GET", f"/weighing/{results.id}", ["localhost"], 80)
    assert len(served._kept) == 2


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost:1", "", "0.0.0.0", "[::1]"]
)
def test_other_hosts_are_refused_on_every_route(server, finished, route, host):
    answer, body = ask(server, route.format(id=finished.id), host=[host])
    assert answer.status == 403
    assert finished.method not in body


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]])
def test_exactly_one_host_is_wanted(server, hosts):
    assert ask(server, host=hosts)[0].status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1"])
def test_this_machine_is_answered(server, host):
    assert ask(server, host=host)[0].status == 200
    assert ask(server, host=f"{host}:{server.server_port}")[0].status == 200


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "FOO"])
def test_only_get_is_served(server, finished, route, method):
    answer, _ = ask(server, route.format(id=finished.id), method=method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/../../etc/passwd", 400),
        ("/weighing/..%2f..%2fetc%2fpasswd", 400),
        ("/weighing/../x", 400),
        ("/?q=1", 400),
        ("http://evil.example/", 400),
        ("/" + "a" * 400, 400),
        ("/weighing/unknown", 404),
        ("/api/weighing/unknown/progress", 404),
        ("/api/weighing/gdro_fsq-20261130-0000", 404),
        ("/weighing/gdro_fsq-20261130-0000/progress", 404),
        ("/weighing/", 404),
        ("/favicon.ico", 404),
        ("//evil.example", 404),
    ],
)
def test_other_paths_are_not_found(server, path, status):
    answer, body = ask(server, path)
    assert answer.status == status
    assert "root:" not in body


def test_every_answer_has_the_same_protective_headers(server, finished):
    asked = [ask(server, route.format(id=finished.id))[0] for route in [*ROUTES, "/nothing", "/?x"]]
    asked += [ask(server, method="POST")[0], ask(server, host="evil.example")[0]]
    for answer in asked:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        for name in view._HEADERS:
            assert answer.headers[name] == view._HEADERS[name]
        assert answer.headers["Access-Control-Allow-Origin"] is None
        assert "Python" not in answer.headers["Server"]


def test_broken_requests_get_a_plain_answer(server):
    assert " 400 " in raw(server, b"NONSENSE\r\n\r\n").splitlines()[0] + " 400 "
    long = raw(server, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n")
    assert "414" in long.splitlines()[0]
    assert "Content-Security-Policy" in long


def test_an_error_of_the_store_is_a_page(store):
    def fail():
        raise StoreError("the store <b>is</b> locked")

    store.weighings = fail
    answer = view.View(store).answer("GET", "/", ["localhost"], 80)
    assert answer.status == 503
    assert "the store &lt;b&gt;is&lt;/b&gt; locked" in answer.body


def test_a_missing_extra_is_a_page_and_progress_needs_none(store, finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    served = view.View(store)
    answer = served.answer("GET", f"/weighing/{finished.id}", ["localhost"], 80)
    assert answer.status == 503
    assert "pip install" in answer.body
    for path in ("/", f"/weighing/{builders.unfinished().id}"):
        assert served.answer("GET", path, ["localhost"], 80).status == 200


def test_hostile_text_is_escaped_in_every_page():
    hostile = builders.hostile()
    for body in (pages.live(hostile), pages.index([Store.entry(hostile)]), pages.message("t", builders.HOSTILE)):
        assert "<script>window" not in body
        assert "<img" not in body
        assert "&lt;script&gt;" in body


def test_a_taken_port_is_one_sentence(server):
    with pytest.raises(InputError, match=r"port: cannot listen on 127\.0\.0\.1"):
        view.make_server(Store(), server.server_port)
    with pytest.raises(InputError, match="port"):
        view.make_server(Store(), 70_000)


def test_serve_prints_the_address_opens_the_browser_and_stops_on_ctrl_c(monkeypatch, capsys, tmp_path):
    from steelyard import bench

    opened, asked = [], []
    monkeypatch.setattr(bench, "open_source", lambda path: asked.append(path) or Store(), raising=False)
    monkeypatch.setattr(view.webbrowser, "open", opened.append)

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(view.ThreadingHTTPServer, "serve_forever", stop)
    view.serve(str(tmp_path / "s.db"), port=0, open_browser=True)
    said = capsys.readouterr().out
    assert opened[0] in said
    assert opened[0].startswith("http://127.0.0.1:")
    assert asked == [str(tmp_path / "s.db")]
    assert said.endswith("Stopped.\n")
