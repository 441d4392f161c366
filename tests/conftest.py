"""Rules for every test: nothing is skipped in CI for want of something, nothing is left behind in /dev/shm, and a test
that ends its process ends the run.

``HORA_TEST_REQUIRE_ALL=1`` (set by ``.ci/run``) turns a skip into a failure, so that a missing MPI or C core shows up
as red and not as a smaller number of green dots. A test that needs hardware this machine has not says so with a reason
beginning ``hardware:`` and may still be skipped.
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


# What TensorFlow leaves to oneDNN differs between processors: on some, halves end the process, or a nan does not pass a
# ReLU. These tests are about Hora.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
BF16_WRONG = "HORA_TEST_BF16_WRONG"  # from the process that runs the tests to those that it starts


def pytest_configure(config: pytest.Config) -> None:
    """Where the processor announces AMX it is tried, once and before torch computes anything: all tests run with the
    variable that helps, or those that are marked ``bf16`` are skipped."""
    announced = "amx_bf16" in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else False
    if not announced or hasattr(config, "workerinput"):
        return
    from hora.workloads import bf16

    wrong, variables = bf16.try_out("torch", os.environ)
    os.environ.update({BF16_WRONG: wrong} if variables is None else variables)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if BF16_WRONG in os.environ and item.get_closest_marker("bf16"):
        pytest.skip(f"hardware: this processor announces bfloat16 and does not have it: {os.environ[BF16_WRONG]}")


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


def _unit(nodeid: str) -> str:
    """What one test belongs to and runs with, one after the other: its file. The hosts of tests/cluster have fixed
    names, so these are one; and so are all tests that look at the clock for as long as a death takes to be noticed."""
    together = nodeid.startswith(("tests/cluster/", "tests/chaos/"))
    return "hosts" if together else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`make test` runs two units at a time, in the order of their tests."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """A test killed its process, or the process died beside its tests. xdist would start another one for the tests that
    are left, give it a file in which none is, and wait for ever; and to a death beside tests it would say nothing."""
    if error is None:  # it ended as it should
        return
    session = node.config.pluginmanager.getplugin("dsession")
    died_in = session.sched.remove_node(node) if node in session.sched.nodes else None
    if died_in is not None:
        session.handle_crashitem(died_in, node)  # a failure like any other
    where = f"while it ran {died_in}" if died_in is not None else "while it ran no test"
    pytest.exit(f"a test process died {where}; the run ends here, with tests not run", returncode=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """There, units that take long come first and the short ones last, so that nobody works on alone at the end."""
    if not hasattr(config, "workerinput"):
        return
    seconds: dict[str, float] = {}  # very roughly
    for item in items:
        unit = _unit(item.nodeid)
        first = 3.0 if unit.startswith("tests/") else 0.0  # others are examples in the code
        slow = 10.0 if item.get_closest_marker("slow") else 0.1
        seconds[unit] = seconds.get(unit, first) + slow
    items.sort(key=lambda item: -seconds[_unit(item.nodeid)])


def _segments() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("*hora*")} if SHARED_MEMORY.is_dir() else set()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_in_shared_memory() -> Iterator[None]:
    """Whatever was killed, and however: no test run leaves a file of Hora's in /dev/shm."""
    before = _segments()
    yield
    left = sorted(_segments() - before)
    assert not left, f"the tests left {left} in {SHARED_MEMORY}"
