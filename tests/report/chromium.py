"""One headless chromium for the browser tests: Debian's, driven by Playwright; no browser is downloaded."""

from __future__ import annotations

import os
import shutil

import pytest

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ADVICE = "the browser tests need chromium: apt-get install chromium"


@pytest.fixture(scope="module")
def chromium():
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(ADVICE)
        pytest.skip(ADVICE)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Return a function that opens an address and a list that collects errors and outside requests."""
    contexts = []

    def open_(url: str, width: int = 1280, height: int = 900, dark: bool = False):
        scheme = "dark" if dark else "light"
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.trouble = []
        page.requests = []
        page.on("console", lambda message: message.type == "error" and page.trouble.append(message.text))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
