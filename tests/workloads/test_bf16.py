"""bfloat16 that works, that works without AMX, and that does not work at all; before a worker starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora
from tests.workloads.conftest import write_digits

from hora.errors import EnvironmentUnfit
from hora.workloads import bf16
from hora.workloads.options import WorkloadOptions

# Stands in every Python of a test for a processor that announces AMX: the process that tries bfloat16 dies of it.
PROCESSOR = """
import os, signal, sys
if any("bfloat16" in word for word in sys.orig_argv) and {when}:
    os.kill(os.getpid(), signal.SIGILL)
"""
(HELP,) = bf16.HELPS["torch"]
ALWAYS, WITHOUT_HELP = "True", "'DNNL_MAX_CPU_ISA' not in os.environ"


def processor(folder: Path, when: str) -> dict[str, str]:
    """The variables of a process on it."""
    (folder / "sitecustomize.py").write_text(PROCESSOR.format(when=when))
    return {**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).resolve().parents[2] / 'src'}"}


@pytest.fixture(autouse=True)
def nothing_is_set_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*HELP, "TF_ENABLE_ONEDNN_OPTS"):
        monkeypatch.delenv(name, raising=False)


def test_where_it_dies_the_variable_that_helps_is_found(tmp_path: Path) -> None:
    environ = processor(tmp_path, WITHOUT_HELP)
    said: list[str] = []
    assert bf16.settings(WorkloadOptions(precision="bf16"), environ, said.append) == HELP
    (line,) = said
    assert "ended by SIGILL" in line and "with DNNL_MAX_CPU_ISA=AVX512_CORE_BF16 it works" in line
    assert bf16.settings(WorkloadOptions(), environ, said.append) == {} and len(said) == 1
    assert bf16.settings(WorkloadOptions(precision="bf16"), {**environ, **HELP}, said.append) == {} and len(said) == 1


def test_where_nothing_helps_it_is_refused(tmp_path: Path) -> None:
    environ = processor(tmp_path, ALWAYS)
    with pytest.raises(
        EnvironmentUnfit, match=r"\(ended by SIGILL\), also with DNNL.*\. Train with --precision float32\."
    ):
        bf16.settings(WorkloadOptions(precision="bf16"), environ, print)
    chosen = {**environ, "DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}  # by the user: nothing else is tried
    with pytest.raises(EnvironmentUnfit, match=r"with DNNL_MAX_CPU_ISA=AVX512_CORE_AMX this .* Unset that, or train"):
        bf16.settings(WorkloadOptions(precision="bf16"), chosen, print)


@pytest.mark.parametrize(
    ("module", "wrong"),
    [
        ("raise ImportError('no torch here')", ""),  # not for this to say
        ("raise RuntimeError('could not create a primitive')", "RuntimeError: could not create a primitive"),
    ],
)
def test_what_a_framework_says_is_told(tmp_path: Path, module: str, wrong: str) -> None:
    (tmp_path / "torch.py").write_text(module)
    assert bf16.try_out("torch", {"PYTHONPATH": str(tmp_path)}).wrong == wrong


@pytest.mark.parametrize("workers", [(), ("-np", "2")], ids=["here", "two"])
def test_hora_train_refuses_before_anything_starts(tmp_path: Path, workers: tuple[str, ...]) -> None:
    environ, data = processor(tmp_path, ALWAYS), write_digits(tmp_path / "data", train=40, test=20)
    done = run_hora(
        "train", "mnist", *workers, "--precision", "bf16", "--data", data, "--out", tmp_path / "out",
        PYTHONPATH=environ["PYTHONPATH"],
    )  # fmt: skip
    assert done.returncode == 3 and done.stdout == "" and not (tmp_path / "out").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("hora: --precision bf16: this processor does not compute in bfloat16")


@pytest.mark.slow
def test_hora_train_sets_what_helps(tmp_path: Path) -> None:
    environ = processor(tmp_path, WITHOUT_HELP)
    data = write_digits(tmp_path / "data", train=40, test=20)
    done = run_hora(
        "train", "mnist", "-np", "1", "--precision", "bf16", "--data", data, "--out", tmp_path / "out",
        "--batch", "20", PYTHONPATH=environ["PYTHONPATH"], timeout_s=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("so that is set for this run") == 1
