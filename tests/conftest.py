"""Rules for every test: nothing is skipped in CI for want of something, and nothing is left behind in /dev/shm.

``HORA_TEST_REQUIRE_ALL=1`` (set by ``.ci/run``) turns a skip into a failure, so that a missing MPI or C core shows up
as red and not as a smaller number of green dots. A test that needs hardware no CI has says so with a reason beginning
``hardware:`` and may still be skipped.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

REQUIRE_ALL = os.environ.get("HORA_TEST_REQUIRE_ALL") == "1"
ALLOWED_REASON = "hardware:"
SHARED_MEMORY = Path("/dev/shm")


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not REQUIRE_ALL or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_REASON):
        report.outcome = "failed"
        report.longrepr = f"Skipped, which HORA_TEST_REQUIRE_ALL=1 forbids: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`make test` runs two files at a time. The hosts of tests/cluster have fixed names, so these are one; and so are
    all tests that look at the clock for as long as a death takes to be noticed."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            together = nodeid.startswith(("tests/cluster/", "tests/chaos/"))
            return "hosts" if together else nodeid.partition("::")[0]

    return Files(config, log)


def _segments() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("*hora*")} if SHARED_MEMORY.is_dir() else set()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_in_shared_memory() -> Iterator[None]:
    """Whatever was killed, and however: no test run leaves a file of Hora's in /dev/shm."""
    before = _segments()
    yield
    left = sorted(_segments() - before)
    assert not left, f"the tests left {left} in {SHARED_MEMORY}"
