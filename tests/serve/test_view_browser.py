import threading

import builders
import pytest
from fake_store import Store

from steelyard.serve import view

pytestmark = pytest.mark.browser


@pytest.fixture
def store():
    return Store(builders.unfinished())


@pytest.fixture
def address(store):
    server = view.make_server(store, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def advance(store, share):
    """Let this share of the cells be done, the next two run."""
    full = builders.weighing(builders.nfi_plan(2), root=7)
    done = int(share * len(full.rows))
    waiting = [
        row.model_copy(update={"state": "running" if index < 2 else "waiting", "metrics": {}})
        for index, row in enumerate(full.rows[done:])
    ]
    rows = (*full.rows[:done], *waiting)
    finished = share >= 1
    store.all[full.id] = full.model_copy(
        update={"rows": rows, "finished": finished, "verdicts": full.verdicts if finished else ()}
    )
    return full.id


@pytest.mark.parametrize("width", [1280, 360])
def test_progress_moves_and_gives_way_to_the_report(open_page, address, store, width):
    name = advance(store, 0.25)
    page = open_page(f"{address}/weighing/{name}", width=width)
    assert page.inner_text("#said").startswith("45 of 180")
    advance(store, 0.5)
    page.get_by_text("90 of 180 cells are in").wait_for(timeout=10_000)
    assert page.get_attribute("#meter", "aria-valuenow") == "90"
    assert page.locator("#cells li").count() == 2
    assert page.title().startswith("50 %")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    advance(store, 1)
    page.wait_for_selector("#m1-verdicts", timeout=30_000)
    assert page.trouble == []
    assert all(url.startswith(address) for url in page.requests)


def test_a_stopped_server_is_said(open_page, store):
    name = advance(store, 0.25)
    server = view.make_server(store, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    page = open_page(f"http://127.0.0.1:{server.server_port}/weighing/{name}")
    server.shutdown()
    server.server_close()
    page.get_by_text("The view does not answer").wait_for(timeout=10_000)


@pytest.mark.parametrize("dark", [False, True])
def test_index_leads_to_the_report(open_page, address, store, dark):
    name = advance(store, 1)
    page = open_page(address, width=360, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click(f"a[href='/weighing/{name}']")
    page.wait_for_selector("#m1-verdicts")
    assert page.trouble == []


def test_hostile_text_does_not_run_in_the_view(open_page, address, store):
    hostile = builders.hostile().model_copy(update={"finished": False})
    running = tuple(row.model_copy(update={"state": "running"}) for row in hostile.rows)
    store.all = {"hostile": hostile.model_copy(update={"rows": running})}
    page = open_page(f"{address}/weighing/hostile")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.pwned === undefined && document.images.length === 0")
    assert page.trouble == []
