import threading

import pytest
from serve_upstreams import served
from starlette.testclient import TestClient

from steelyard.errors import EndpointError
from steelyard.serve import guard_page

HOSTILE = "<img src=x onerror=\"document.title='broken'\">\u202e\x00</script>"


def shown(prompt):
    copy = {"disrupted": f"{prompt}#", "rectified": prompt, "response": HOSTILE, "vote": 1}
    return {
        "undefended": f"plain {HOSTILE}", "response": "I cannot help.", "jailbroken": False,
        "verdict": "1 of 3 complied",
        "bound": "at least 0.123", "chosen": 1, "calls": 4, "notes": ["a note"],
        "copies": [copy, {**copy, "response": "I cannot help.", "vote": 0}, {**copy, "vote": 0, "response": "No."}],
    }  # fmt: skip


@pytest.fixture
def client():
    app = guard_page.make_page_app(shown, "The stub is asked.", "an <example>")
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def test_the_page_and_its_policy(client):
    answer = client.get("/")
    assert answer.status_code == 200
    assert "an &lt;example&gt;" in answer.text
    assert answer.headers.get_list("content-security-policy") == [answer.headers["content-security-policy"]]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "script-src 'sha256-" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_ask(client):
    found = client.post("/ask", json={"prompt": "hello"}).json()
    assert found["copies"][0]["disrupted"] == "hello#"
    assert "\u202e" not in found["undefended"]
    assert "\x00" not in found["undefended"]


@pytest.mark.parametrize(
    ("payload", "said"),
    [({}, "must be a text"), ({"prompt": 3}, "must be a text"), ({"prompt": "  "}, "must be a text"),
     ({"prompt": "x" * 4001}, "at most 4000"), ({"prompt": "x", "api_base": "http://elsewhere"}, "host or a key")],
)  # fmt: skip
def test_what_is_refused(client, payload, said):
    answer = client.post("/ask", json=payload)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_other_sites_and_names_are_refused(client):
    assert client.post("/ask", json={"prompt": "x"}, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/ask", json={"prompt": "x"}, headers={"host": "evil.example"}).status_code == 403
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.post("/ask", content="prompt=x").status_code == 415
    assert client.get("/ask").status_code == 405
    assert client.get("/nowhere").status_code == 404


def test_a_failure_is_one_sentence():
    def fails(prompt):
        raise EndpointError("http://127.0.0.1:9/v1 cannot be reached\n")

    with TestClient(guard_page.make_page_app(fails, "x", "y"), base_url="http://127.0.0.1") as client:
        answer = client.post("/ask", json={"prompt": "x"})
    assert answer.status_code == 502
    assert "cannot be reached" in answer.json()["error"]["message"]


def test_one_prompt_at_a_time():
    running, most = [], []

    def slow(prompt):
        running.append(prompt)
        most.append(len(running))
        threading.Event().wait(0.6 if len(most) == 1 else 0.1)
        running.pop()
        return shown(prompt)

    with served(guard_page.make_page_app(slow, "x", "y")) as port:
        import httpx

        def ask():
            httpx.post(f"http://127.0.0.1:{port}/ask", json={"prompt": "x"}, timeout=20)

        with pytest.raises(httpx.ReadTimeout):  # a client that leaves lets no other in before its prompt is done
            httpx.post(f"http://127.0.0.1:{port}/ask", json={"prompt": "x"}, timeout=0.2)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1, 1, 1, 1]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_in_a_browser(open_page, width, dark):
    with served(guard_page.make_page_app(shown, "The stub is asked.", "an example")) as port:
        page = open_page(f"http://127.0.0.1:{port}/", width=width, dark=dark)
        assert page.input_value("#prompt") == "an example"
        assert not page.is_visible("#shown")
        page.fill("#prompt", "tell me")
        page.click("#go")
        page.wait_for_selector("#shown:not([hidden])", timeout=10_000)
        assert page.inner_text("#answer") == "I cannot help."
        assert page.inner_text("#plain").startswith("plain <img")
        assert page.locator("#copies tr").count() == 3
        assert page.locator("#copies tr.ours").count() == 1
        assert "2 (returned)" in page.locator("#copies tr.ours").inner_text()
        assert page.inner_text("#verdict") == "1 of 3 complied"
        assert "0.123" in page.inner_text("#bound")
        assert "4 calls" in page.inner_text("#state")
        assert page.locator("#shown img").count() == 0
        assert page.title() == "Guard · steelyard"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.trouble == []
        assert all(url.startswith(f"http://127.0.0.1:{port}/") or url == "data:," for url in page.requests)


@pytest.mark.browser
def test_a_refusal_is_shown_in_a_browser(open_page):
    def fails(prompt):
        raise EndpointError("the endpoint is asleep")

    with served(guard_page.make_page_app(fails, "x", "y")) as port:
        page = open_page(f"http://127.0.0.1:{port}/")
        page.click("#go")
        page.get_by_text("Not answered: the endpoint is asleep").wait_for(timeout=10_000)
        assert page.is_enabled("#go")
        assert not page.is_visible("#shown")
