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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["lab", "scalign"], "Did you mean 'scaling'?"),
        (["train", "minst"], "Did you mean 'mnist'?"),
        (["data", "gett"], "Did you mean 'get'?"),
        (["data", "make", "digit"], "Did you mean 'digits'?"),
        (["data", "get", "mnits"], "Did you mean 'mnist'?"),
        (["bench", "allreduse"], "Did you mean 'allreduce'?"),
        (["train", "mnist", "--epoch", "2"], "--epochs"),
        (["lab", "sweep", "mnist", "--grid", "lrr=1"], "mnist has no option 'lrr'. Did you mean 'lr'?"),
        (["lab", "scaling", "synthetic", "--set", "modl=mnist"], "Did you mean 'model'?"),
        (["lab", "scaling", "synthetic", "--set", "model=mnst"], "mnist, "),
        (["lab", "scaling", "synthetic", "--set", "model=mnst"], "Did you mean 'mnist'?"),
        (["lab", "sweep", "mnist", "--grid", "network=horovd"], "it can be tensorflow, horovod. Did you"),
        (["completion", "bsh"], "Did you mean 'bash'"),
        (["completion"], "Choose from bash, zsh, fish."),
        (["lab", "scaling", "mnist", "--framework", "keras"], "Give it as --set framework=keras."),
        (["lab", "sweep", "mnist", "--save-every=2"], "Give it as --set save-every=2."),
        (["submit", "-np", "4", "python", "a.py"], "--nodes, and on each of them --tasks-per-node"),
        (["-np", "2", "python", "train.py"], "hora run -np 2 python train.py"),
    ],
)
def test_a_name_that_is_not_known_is_answered_with_one_like_it(arguments: list[str], said: str) -> None:
    done = run_hora(*arguments)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_bare_hora_welcomes() -> None:
    done, asked = run_hora(), run_hora("--help")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == asked.stdout
    for word in (
        "hora doctor ",
        "hora data make digits ",
        "hora train mnist -np 2 --epochs 1 ",
        "docs",
        "hora completion bash",
    ):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_group_without_a_command_shows_its_help_as_it_is() -> None:
    done = run_hora("data")
    assert done.returncode == 2 and done.stderr.startswith("Usage: hora data") and "hora: " not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = run_hora("completion", shell)
    assert done.returncode == 0 and "_HORA_COMPLETE" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("hora tr", "plain,train"),
        ("hora train mnist --resu", "plain,--resume"),
        ("hora data get fa", "plain,fashion"),
        ("hora run -np 2 tra", "file,tra"),
    ],
)
def test_what_a_shell_is_told(words: str, found: str) -> None:
    last = str(len(words.split()) - 1)
    done = run_hora(_HORA_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=last)
    assert found in done.stdout.splitlines()


def test_there_is_no_other_name_than_run() -> None:
    import hora

    assert callable(hora.run)
    with pytest.raises(AttributeError, match="dance"):
        hora.dance  # noqa: B018
