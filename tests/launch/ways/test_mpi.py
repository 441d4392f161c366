"""Workers started by a real mpirun: Open MPI here; MPICH's options and words as text, and for real in tests/cluster."""

from __future__ import annotations

import pytest
from tests.launch.jobs import python, run_hora

from hora.launch.job_output import JobOutput
from hora.launch.ways.mpi import MpiImplementation, MpiLaunch, find_mpirun, implementation_of
from hora.launch.ways.mpi_output import TAGS, Separator


@pytest.fixture(scope="module", autouse=True)
def openmpi() -> None:
    try:
        _, flavour = find_mpirun()
    except Exception as error:
        pytest.skip(f"no mpirun: {error}")
    if flavour.name != "Open MPI":
        pytest.skip(f"the mpirun here is {flavour.name}")


RANK = "import os, sys, time; rank = int(os.environ['OMPI_COMM_WORLD_RANK'])\n"


def test_output_is_told_apart_and_looks_as_always() -> None:
    program = RANK + "print('half', end=''); time.sleep(0.2); print(' whole', rank); print('e', file=sys.stderr)"
    done = run_hora("run", "--on", "mpi", "-np", "2", *python(program))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:half whole 0", "[1]<stdout>:half whole 1"]
    assert sorted(done.stderr.splitlines()) == ["[0]<stderr>:e", "[1]<stderr>:e"]


@pytest.mark.parametrize(
    ("leave", "code", "said"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("sys.exit(7)", 7, "exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "killed by signal 9 (SIGKILL)"),
    ],
)
def test_the_first_failure_is_told(leave: str, code: int, said: str) -> None:
    done = run_hora("run", "--on", "mpi", "-np", "2", *python(RANK + f"if rank == 1: {leave}\ntime.sleep(20)"))
    assert done.returncode == code, done.stderr
    assert "+-- hora: rank 1 failed" in done.stderr and said in done.stderr


def test_the_environment_goes_by_name_and_has_the_hub() -> None:
    program = (
        "import os; print(os.environ['HORA_HUB_ADDRESSES'] != '', len(os.environ['HORA_SECRET']), os.environ['MINE'])"
    )
    done = run_hora("run", "--on", "mpi", "-np", "2", "--verbose", "-x", "MINE=5", *python(program))
    assert done.stdout.count("True 64 5") == 2, done.stderr
    line = next(line for line in done.stderr.splitlines() if "Open MPI: " in line)
    assert "-x HORA_SECRET" in line and "HORA_SECRET=" not in line and "MINE=" not in line


def test_arguments_of_the_user_and_dry_run() -> None:
    arguments = ("--mpi-args=--display map", "--binding-args=--bind-to core", "--network-interfaces", "lo")
    done = run_hora("run", "--on", "mpi", "-H", "h1:2,h2:2", "-np", "3", *arguments, "--dry-run", "true")
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-1]
    assert "-np 3" in command and "-H h1:2,h2:1" in command and command.endswith("--display map true")
    assert "--bind-to core" in command and "--bind-to none" not in command and "btl_tcp_if_include lo" in command
    assert "<secret>" not in command


def test_an_mpirun_that_cannot_start_them() -> None:
    done = run_hora("run", "--on", "mpi", "-np", "2", "--mpi-args=--no-such-option-at-all", "true")
    assert done.returncode == 3
    assert "could not start the workers" in done.stderr and "no-such-option-at-all" in done.stderr


def test_no_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert implementation_of("sh: 1: mpirun: not found") is None


def test_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    from hora.launch.ways.mpi import _hydra

    options = _hydra(MpiImplementation("hydra", "MPICH", 5), ["h1:2", "h2:2"], ["A", "B"], [], ["eth0"])
    assert options == ["-hosts", "h1:2,h2:2", "-prepend-pattern", "<hora:%r>", "-genvlist", "A,B", "-iface", "eth0"]
    assert "-l" in _hydra(MpiImplementation("hydra", "Intel MPI", 2021), ["h1:2"], [], [], [])
    assert MpiLaunch().name == "mpi"


def test_open_mpi_keeps_off_bridges_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    from hora.launch.ways import mpi

    monkeypatch.setattr(mpi.addresses, "inward", lambda: ("docker0",))
    version = MpiImplementation("openmpi", "Open MPI", 5)
    assert "lo,docker0" in mpi._openmpi(version, ["h1:2"], [], [], [], [], [])
    for interfaces, more in ((["eth0"], []), ([], ["--mca", "btl_tcp_if_include", "ib0"])):
        assert "lo,docker0" not in mpi._openmpi(version, ["h1:2"], [], [], interfaces, [], more)


class Heard:
    def __init__(self) -> None:
        self.pieces: dict[tuple[int, str], bytes] = {}

    def put(self, rank: int, name: str, data: bytes) -> None:
        self.pieces[rank, name] = self.pieces.get((rank, name), b"") + data


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_without_line_ends_find_their_rank(size: int) -> None:
    """As MPICH writes them: a tag before every piece, wherever in a line; print writes its line end by itself."""
    heard = Heard()
    separator = Separator(TAGS["MPICH"], heard, lambda line: None)  # type: ignore[arg-type]
    text = b"<hora:1>one<hora:0>[1] zero<hora:1>\n<hora:0>\n<hora:0>a\xff\n<hora:0>\nmpiexec says no\n<hora:1>end"
    for start in range(0, len(text), size):
        separator._take("stdout", text[start : start + size])
    separator._end("stdout")
    assert heard.pieces == {(0, "stdout"): b"[1] zero\na\xff\n\n", (1, "stdout"): b"one\nend"}
    assert separator.own_words() == "mpiexec says no\n"
    assert JobOutput is not None
