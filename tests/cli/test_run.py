"""``hora run`` as a user meets it: what it starts, what it prints, what it refuses."""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.launch.jobs import python, run_hora

from hora.cli.main import main
from hora.cli.run import run

SHOW = "import os, sys; print(*(os.environ.get(name) for name in sys.argv[1:]))"
CORES = len(os.sched_getaffinity(0))


def shown(*arguments: str, names: str, **environment: Any) -> list[str]:
    """What the workers find in their environment, in rank order."""
    done = run_hora("run", *arguments, *python(SHOW), *names.split(), **environment)
    assert done.returncode == 0, done.stderr
    return sorted(line.partition("<stdout>:")[2] or line for line in done.stdout.splitlines())


# ---- what it starts ----


def test_places() -> None:
    names = "HORA_RANK HORA_SIZE HORA_LOCAL_RANK HORA_LOCAL_SIZE HORA_CROSS_RANK HORA_CROSS_SIZE HORA_HOSTNAME"
    expected = ["0 2 0 2 0 1 localhost", "1 2 1 2 0 1 localhost"]
    assert shown("-np", "2", names=names) == expected
    assert shown("-np", "2", names=names.replace("HORA", "HOROVOD")) == expected


def test_exactly_np_workers() -> None:
    assert len(shown("-np", "2", "-H", "localhost:4", names="HORA_RANK")) == 2
    assert len(shown("-H", f"{socket.gethostname()}:3", names="HORA_RANK")) == 3
    assert len(shown("-np", "auto", names="HORA_RANK")) == CORES


def test_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# ours\n\nlocalhost slots=2\n")
    assert len(shown("-hostfile", str(tmp_path / "hosts"), names="HORA_RANK")) == 2
    assert len(shown("-np", "1", "--hostfile", str(tmp_path / "hosts"), names="HORA_RANK")) == 1


def test_the_command_is_passed_on_untouched() -> None:
    arguments = ["--epochs", "3", "-v", "-np", "9", "--", "-x", "a b", "", "--help"]
    done = run_hora("run", "-np", "1", *python("import sys; print(sys.argv[1:])"), *arguments)
    assert done.stdout == f"{arguments}\n"
    done = run_hora("run", "-np", "1", "--", *python("import sys; print(sys.argv[1:])"), *arguments)
    assert done.stdout == f"{arguments}\n"


def test_a_script_needs_no_interpreter(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    done = run_hora("run", "-np", "1", "train.py", "-a", cwd=tmp_path)
    assert "['-a']" in done.stdout


def test_threads() -> None:
    assert (
        shown("-np", "2", names="OMP_NUM_THREADS") == [str(max(1, CORES // 2))] * 2 or "OMP_NUM_THREADS" in os.environ
    )
    assert shown("-np", "2", names="OMP_NUM_THREADS", OMP_NUM_THREADS="5") == ["5", "5"]


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ("--fusion-threshold-mb 32", "FUSION_THRESHOLD", "33554432"),
        ("--cycle-time-ms 3.5", "CYCLE_TIME", "3.5"),
        ("--cache-capacity 0", "CACHE_CAPACITY", "0"),
        ("--timeline-filename t.json", "TIMELINE", "t.json"),
        ("--timeline-mark-cycles", "TIMELINE_MARK_CYCLES", "1"),
        ("--no-stall-check", "STALL_CHECK_DISABLE", "1"),
        ("--stall-check", "STALL_CHECK_DISABLE", "0"),
        ("--stall-check-warning-time-seconds 9", "STALL_CHECK_TIME_SECONDS", "9.0"),
        ("--stall-check-shutdown-time-seconds 90", "STALL_SHUTDOWN_TIME_SECONDS", "90.0"),
        ("--start-timeout 7", "START_TIMEOUT", "7.0"),
        ("--log-level debug", "LOG_LEVEL", "DEBUG"),
        ("--log-without-timestamp", "LOG_HIDE_TIME", "1"),
        ("--thread-affinity 0,1", "THREAD_AFFINITY", "0,1"),
        ("--gloo-timeout-seconds 60", "GLOO_TIMEOUT_SECONDS", "60.0"),
        ("--network-interfaces eth0", "GLOO_IFACE", "eth0"),
        ("--gloo", "TRANSPORT", "gloo"),
        ("--mpi", "TRANSPORT", "None"),
        ("--autotune --autotune-log-file a --autotune-warmup-samples 3", "AUTOTUNE_LOG", "a"),
        ("--hierarchical-allreduce --no-torus-allreduce", "HIERARCHICAL_ALLREDUCE", "1"),
        ("-p 22 --disable-cache --tcp --mpi-args=-x --binding-args=b --num-nccl-streams 2", "NUM_NCCL_STREAMS", "2"),
    ],
)  # fmt: skip
def test_horovodruns_flags(arguments: str, name: str, value: str) -> None:
    done = run_hora("run", "-np", "1", "--dry-run", *shlex.split(arguments), "true")
    assert done.returncode == 0, done.stderr
    assert f"HORA_{name}={value} " in done.stdout or (value == "None" and f"HORA_{name}=" not in done.stdout)


def test_config_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[params]\ncycle_time_ms = 4\ncache_capacity = 5\n")
    names = "HORA_CYCLE_TIME HORA_CACHE_CAPACITY"
    assert shown("-np", "1", "--cycle-time-ms", "2", "--config-file", str(tmp_path / "c.toml"), names=names) == [
        "2.0 5"
    ]


# ---- what it prints ----


def test_output_is_prefixed_only_when_there_are_several() -> None:
    program = python("import sys; print('out'); print('err', file=sys.stderr)")
    one = run_hora("run", "-np", "1", *program)
    assert (one.stdout, one.stderr) == ("out\n", "err\n")
    two = run_hora("run", "-np", "2", *program)
    assert sorted(two.stdout.splitlines()) == ["[0]<stdout>:out", "[1]<stdout>:out"]
    assert sorted(two.stderr.splitlines()) == ["[0]<stderr>:err", "[1]<stderr>:err"]


def test_timestamps() -> None:
    done = run_hora("run", "-np", "2", "--prefix-output-with-timestamp", *python("print('x')"))
    assert all(time.strptime(line.partition("[")[0], "%a %b %d %H:%M:%S %Y") for line in done.stdout.splitlines())


@pytest.mark.parametrize("np", [1, 11])
def test_output_files(tmp_path: Path, np: int) -> None:
    program = "import os, sys; print(os.environ['HORA_RANK']); print('e', file=sys.stderr)"
    done = run_hora("run", "-np", str(np), "--output-filename", str(tmp_path / "new" / "out"), *python(program))
    assert done.returncode == 0
    width = len(str(np - 1))
    for rank in range(np):
        folder = tmp_path / "new" / "out" / f"rank.{rank:0{width}}"
        assert (folder / "stdout").read_text() == f"{rank}\n"
        assert (folder / "stderr").read_text() == "e\n"


def test_dry_run_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = run_hora("run", "-np", "2", "--dry-run", "--gloo", "touch", str(mark))
    assert done.returncode == 0 and not mark.exists()
    assert "hosts: localhost (2 slots)" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert len(lines) == 2
    assert "HORA_RANK=1" in lines[1] and "HORA_TRANSPORT=gloo" in lines[1] and lines[1].endswith(f"touch {mark}")


def test_verbose_and_summary() -> None:
    done = run_hora("run", "-np", "2", "--verbose", "--summary", "true")
    assert "hora: started 2 workers: pid " in done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines()[-2:]] == ["0", "1"]


def test_check_build() -> None:
    done = run_hora("run", "--check-build")
    assert done.returncode == 0
    for label in ("TensorFlow", "Torch", "MXNet", "Keras", "JAX"):
        there = importlib.util.find_spec(label.lower()) is not None
        assert f"[{'X' if there else ' '}] {label.replace('Torch', 'PyTorch')}\n" in done.stdout
    assert run_hora("run", "-cb").stdout == done.stdout


# ---- what it refuses: (arguments, exit code, what the message names) ----

REFUSED: list[tuple[str, int, str]] = [
    ("", 2, "-np N"),
    ("true", 2, "-np N"),
    ("-np", 2, "-np"),
    ("-np 2", 2, "no command"),
    ("-np 0 true", 2, "'0'"),
    ("-np -1 true", 2, "'-1'"),
    ("-np two true", 2, "'two'"),
    ("-np 1.5 true", 2, "'1.5'"),
    ("-np '' true", 2, "''"),
    ("-np 2 --nonsense true", 2, "--nonsense"),
    ("-np 5 -H localhost:4 true", 2, "-np 5 asks for more workers than there are slots: localhost:4 has 4"),
    ("-np 2 -H localhost:x true", 2, "'x'"),
    ("-np 2 -H '' true", 2, "''"),
    ("-np 2 -H localhost:2 --hostfile f true", 2, "both"),
    ("-np 2 --hostfile /nowhere true", 2, "/nowhere"),
    ("-np 2 --hostfile / true", 2, "'/'"),
    ("-np 2 --fusion-threshold-mb many true", 2, "many"),
    ("-np 2 --fusion-threshold-mb -1 true", 2, "-1"),
    ("-np 2 --cycle-time-ms x true", 2, "x"),
    ("-np 2 --cache-capacity 1.5 true", 2, "1.5"),
    ("-np 2 --log-level loud true", 2, "loud"),
    ("-np 2 --thread-affinity all true", 2, "'all'"),
    ("-np 2 --start-timeout soon true", 2, "soon"),
    ("-np 2 --on moon true", 2, "moon"),
    ("-np 2 --gloo --mpi true", 2, "--gloo and --mpi"),
    ("-np 2 --config-file /nowhere.toml true", 2, "/nowhere.toml"),
    ("-np 2 --config-file / true", 2, "'/'"),
    ("-np 2 --ssh-port x true", 2, "x"),
    ("-np 2 --on slurm true", 3, "--on slurm"),
    ("-np 2 --jsrun true", 3, "--jsrun"),
    ("-np 2 --on local -H node7.invalid:2 true", 3, "node7.invalid"),
    ("-np 3 --on local -H localhost:2,node7.invalid:2 true", 3, "node7.invalid"),
    ("-H h1:1,h2:1 --network-interfaces ib7 true", 2, "'ib7'"),
    ("-np 2 -H h[1-2 true", 2, "'h[1-2'"),
    ("-np 2 --threads-per-worker 0 true", 2, "0"),
    ('-np 2 --on mpi --mpi-args "\'" true', 2, "--mpi-args"),
    ("-np 2 --elastic-timeout 0 true", 2, "--elastic-timeout"),
    ("-np 2 --host-discovery-script ./d true", 3, "--host-discovery-script"),
    ("-np 2 no_such_program --flag", 3, "'no_such_program'"),
    ("-np 2 missing.py", 3, "'missing.py'"),
    ("-np 2 python -u missing.py --lr 1", 3, "the script 'missing.py' does not exist here"),
    ("-np 2 ./missing/thing", 3, "'./missing/thing'"),
    ("-np 2 /etc/passwd", 3, "'/etc/passwd' is not executable"),
    ("-np 2 /", 3, "'/'"),
    ("-np 2 --output-filename /proc/nowhere true", 3, "/proc/nowhere"),
]


@pytest.mark.parametrize(("line", "code", "named"), REFUSED, ids=[line for line, _, _ in REFUSED])
def test_refusals(line: str, code: int, named: str) -> None:
    done = run_hora("run", *shlex.split(line))
    assert done.returncode == code, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("hora: ") and len(done.stderr.splitlines()) <= 4
    assert not done.stdout


WORDS = [
    *(name for option in run.params for name in (*option.opts, *option.secondary_opts)),
    "-x",
    "--",
    "true",
    "no_such",
]
VALUES = [
    "",
    "0",
    "1",
    "2",
    "-1",
    "1.5",
    "x",
    "auto",
    "localhost:2",
    "localhost:x",
    "node7.invalid:9",
    "/nowhere",
    "é",
    "=",
    "a,b",
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.sampled_from(VALUES), st.text(max_size=5)), max_size=8))
def test_any_command_line_is_understood_or_refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--dry-run", *words])
    err = capsys.readouterr().err
    assert caught.value.code in (0, 2, 3)
    assert not err or (err.startswith("hora: ") and len(err.splitlines()) <= 10)
    assert bool(err) == (caught.value.code != 0)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("python train.py -np 2 --lr 1", "hora run -np 2 python train.py --lr 1"),
        ("train.py --num-proc=4", "hora run --num-proc=4 train.py"),
        ("./train -H a:1,b:1", "hora run -H a:1,b:1 ./train"),
    ],
)
def test_options_after_the_command_are_told_where_they_belong(line: str, instead: str) -> None:
    done = run_hora("run", *line.split())
    assert done.returncode == 2 and f"Options come before the command: '{instead}'" in done.stderr


def test_a_bad_variable_is_one_message_and_starts_nothing() -> None:
    done = run_hora("run", "-np", "2", "true", HOROVOD_FUSION_THRESHOLD="big")
    assert done.returncode == 2
    assert done.stderr.count("HOROVOD_FUSION_THRESHOLD='big'") == 1


def test_more_workers_than_cores_are_told_at_once() -> None:
    cores = len(os.sched_getaffinity(0))
    done = run_hora("run", "-np", str(cores + 1), "true")
    assert done.returncode == 0 and f"{cores + 1} workers share {cores} core" in done.stderr
    assert not run_hora("run", "-np", str(cores), "true").stderr


def test_tensorflow_is_asked_to_be_quiet_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    program = python("import os; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])")
    assert run_hora("run", "-np", "1", *program).stdout == "2\n"
    assert run_hora("run", "-np", "1", *program, TF_CPP_MIN_LOG_LEVEL="0").stdout == "0\n"
