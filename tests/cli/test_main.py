"""The ``hora`` command itself: fast, lazy, and never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.launch.jobs import clean_environment, run_hora


def imported_by(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_hora_imports_next_to_nothing() -> None:
    modules = imported_by("import hora")
    assert {name for name in modules if name.partition(".")[0] == "hora"} == {"hora", "hora.errors"}
    assert not modules & {"msgspec", "click", "numpy", "torch", "rich", "subprocess", "typing"}


def test_the_launcher_imports_neither_frameworks_nor_what_only_failures_need() -> None:
    modules = imported_by("import hora.cli.run, hora.engine.hub")
    assert not modules & {"torch", "numpy", "rich", "psutil", "cloudpickle", "pickle", "asyncio", "multiprocessing"}


def test_help_imports_no_subcommand() -> None:
    modules = imported_by("from hora.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert not modules & {"hora.cli.run", "hora.cli.bench", "msgspec"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["run", "--help"], ["--version"], ["run", "--version"], ["run", "-v"]]
)
def test_questions_are_answered(arguments: list[str]) -> None:
    done = run_hora(*arguments)
    assert done.returncode == 0 and done.stdout and not done.stderr


@pytest.mark.parametrize(("arguments", "named"), [(["dance"], "dance"), (["--np", "2"], "--np"), (["-np", "2"], "-n")])
def test_wrong_usage(arguments: list[str], named: str) -> None:
    done = run_hora(*arguments)
    assert done.returncode == 2
    assert named in done.stderr and "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 3


def test_there_is_no_other_name_than_run() -> None:
    import hora

    assert callable(hora.run)
    with pytest.raises(AttributeError, match="dance"):
        hora.dance  # noqa: B018
