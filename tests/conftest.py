import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steelyard", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steelyard")


@pytest.fixture(autouse=True)
def _one_thread():
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    """Tests under tests/faults are fault tests; a folder says it once instead of every test."""
    for item in items:
        if "faults" in item.path.parts:
            item.add_marker("faults")


def pytest_terminal_summary(terminalreporter):
    """In CI nothing is skipped: a skip there hides a missing data set or browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped and os.environ.get("CI"):
        terminalreporter.write_line(f"CI: {len(skipped)} test(s) skipped, which counts as a failure", red=True)


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped") and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
