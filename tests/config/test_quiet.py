"""What TensorFlow says of itself when it starts is left out; its errors are not, even if it crashes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    "I0000 00:00:1794986132.690344   24045 port.cc:153] oneDNN custom operations are on.\n"
)
ERROR = "E0000 00:00:1794986132.690344   24045 cuda.cc:7] failed call to cuInit\n"
FAKE = f"import os\nos.write(2, {(NOISE + ERROR).encode()!r})\nif os.environ.get('CRASH'): os.abort()\n"
PROGRAM = """
import sys
from hora.config.quiet import importing_tensorflow
print("before", file=sys.stderr)
with importing_tensorflow():
    import tensorflow
print("after", file=sys.stderr)
"""


def _python(program: str, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(place), str(Path(__file__).parents[2] / "src")])
    environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"], **variables}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "tensorflow.py").write_text(FAKE)
    return tmp_path


def test_noise_is_left_out_and_errors_are_not(place: Path) -> None:
    assert _python(PROGRAM, place).stderr == f"before\n{ERROR}after\n"
    assert _python(PROGRAM, place, PATH="/nowhere").stderr == f"before\n{NOISE}{ERROR}after\n"


def test_the_user_can_have_it(place: Path) -> None:
    assert _python(PROGRAM, place, TF_CPP_MIN_LOG_LEVEL="0").stderr == f"before\n{NOISE}{ERROR}after\n"


def test_a_crash_takes_nothing_with_it(place: Path) -> None:
    done = _python(PROGRAM, place, CRASH="1")
    assert done.returncode < 0 and done.stderr == f"before\n{ERROR}"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_launcher_leaves_it_out_of_what_workers_print(
    workers: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a script that imports TensorFlow before Hora."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    program = f"import sys; sys.path.insert(0, {str(place)!r}); import tensorflow"
    done = run_hora("run", "-np", workers, sys.executable, "-c", program)
    assert "oneDNN" not in done.stderr and "absl" not in done.stderr, done.stderr
    assert done.stderr.count("failed call to cuInit") == int(workers)


@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_the_real_one_is_quiet(tmp_path: Path) -> None:
    done = _python("import hora.tensorflow as hvd; hvd.init(); print(hvd.size())", tmp_path)
    assert (done.stdout, done.stderr) == ("1\n", "")
