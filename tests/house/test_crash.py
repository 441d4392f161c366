"""A test run cannot fool itself: a test that ends its process, or never ends, ends the run red, by name and at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 60  # on a busy machine; a quiet one needs 2

FINE = """
def test_one(): pass
def test_two(): pass
def test_three(): pass
"""
DEADLY = """
import ctypes, os, signal
def test_before(): pass
def test_deadly(): {what}
def test_after(): pass
"""
LATE = """
def pytest_runtest_logfinish():
    LATE.append(True)
LATE = []
def pytest_sessionfinish(session):
    if LATE and hasattr(session.config, "workerinput"):
        os._exit(0)
"""


def run_like_make(folder: Path, *more: str, rules: str = "") -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder as `make test` does: the same rules, the same settings, two processes."""
    makefile = (ROOT / "Makefile").read_text()
    options = re.search(r"^PYTEST_ARGS \?= (-n 2) ", makefile, re.MULTILINE)
    assert options is not None
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text() + rules)
    command = [
        sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", folder, "-p", "no:cacheprovider",
        *options[1].split(), *more, folder,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=BOUND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        pytest.fail(f"no end after {BOUND_S} s:\n{said}")
    return subprocess.CompletedProcess(command, process.returncode, said)


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", ()),
        ("os.abort()", ()),
        ("os._exit(0)", ()),
        # A hang that no exception reaches: the lock of Python's interpreter is kept.
        ("ctypes.PyDLL(None).sleep(1000)", ("-o", "faulthandler_timeout=1")),
    ],
)
def test_a_test_that_ends_its_process_ends_the_run(tmp_path: Path, what: str, more: tuple[str, ...]) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(FINE)
    (tmp_path / "test_z.py").write_text(DEADLY.format(what=what))
    done = run_like_make(tmp_path, *more)
    assert done.returncode == 1, done.stdout
    assert "FAILED test_z.py::test_deadly" in done.stdout, done.stdout
    assert "a test process died while it ran test_z.py::test_deadly" in done.stdout


def test_a_process_that_dies_after_its_last_test_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(FINE)
    done = run_like_make(tmp_path, rules=LATE)
    assert done.returncode == 1 and "3 passed" in done.stdout, done.stdout
    assert "a test process died while it ran no test" in done.stdout


def test_what_is_skipped_for_want_of_something_fails_where_all_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text(
        "import pytest\n"
        "def test_missing(): pytest.skip('no MPI here')\n"
        "def test_hardware(): pytest.skip('hardware: no GPU here')\n"
    )
    monkeypatch.setenv("HORA_TEST_REQUIRE_ALL", "1")
    done = run_like_make(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 skipped" in done.stdout and "FAILED test_a.py::test_missing" in done.stdout
    monkeypatch.delenv("HORA_TEST_REQUIRE_ALL")
    assert run_like_make(tmp_path).returncode == 0
