"""``hora doctor`` as a user meets it: here, without any framework, and without the C core as well."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from tests.launch.jobs import SOURCE, clean_environment, run_hora

# What Hora needs, and what that needs; nothing else is in the bare environment.
NEEDED = ("click", "rich", "msgspec", "psutil", "markdown_it", "mdurl", "pygments")


def bare_python(place: Path, *, core: bool) -> Path:
    """A Python that has Hora and its dependencies but numpy, and no framework."""
    venv.create(place / "env", with_pip=False, symlinks=True)
    packages = place / "packages"
    packages.mkdir()
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).parent)
    left_out = shutil.ignore_patterns("__pycache__", *([] if core else ["*.so"]))
    shutil.copytree(SOURCE / "hora", packages / "hora", ignore=left_out)
    [site] = (place / "env" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(str(packages))
    return place / "env" / "bin" / "python"


def doctor(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(PATH=f"{python.parent}:{os.defpath}")
    del environment["PYTHONPATH"]
    return subprocess.run(
        [str(python), "-m", "hora", "doctor", *arguments],
        env=environment, cwd=python.parent, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
def test_everything(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = run_hora("doctor", "--json", file, timeout_s=110)
    result = json.loads(file.read_text())
    assert done.returncode == 0 and result["can_run"] is True, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert [one for one in result["findings"] if one["told"].startswith("the check itself failed")] == []
    status = {(one["group"], one["name"]): one["status"] for one in result["findings"]}
    assert status["transports", "job"] == status["transports", "shared-memory"] == "ok"
    others = {name: status["transports", name] for name in ("gloo", "hora.torch", "mpi")}
    assert set(others.values()) <= {"ok", "not here"}, done.stdout
    assert done.stdout.splitlines()[-1] == result["summary"]
    if missing := [name for name, found in others.items() if found == "not here"]:
        pytest.skip(f"not here: {', '.join(missing)}")


def test_without_any_framework(tmp_path: Path) -> None:
    """Shared memory needs none, so jobs can run."""
    done = doctor(bare_python(tmp_path, core=True), "--only", "transports,frameworks,start")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not here  frameworks/torch" in done.stdout and "no framework was needed" in done.stdout
    assert "ok        transports/job" in done.stdout


def test_with_neither_framework_nor_core(tmp_path: Path) -> None:
    """Then nothing can carry data, and the doctor says so and what to do."""
    done = doctor(bare_python(tmp_path, core=False), "--quick", "--only", "core,segment,job,shared-memory")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "warning   installation/core" in done.stdout and "problem   transports/job" in done.stdout
    assert "the first thing to fix: job" in done.stdout.splitlines()[-1] and not done.stderr


def test_quick_and_only() -> None:
    done = run_hora("doctor", "--quick", "--only", "limits,kernel", "--np", "3")
    assert done.returncode == 0
    assert "for jobs of 3 workers" in done.stdout and "transports" not in done.stdout
    assert "3 workers need about" in done.stdout


def test_a_host_that_cannot_be_reached_is_exit_3() -> None:
    done = run_hora("doctor", "--only", "hosts", "--hosts", "h1:2", HORA_SSH="/bin/false")
    assert done.returncode == 3 and "problem   hosts/h1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--only", "nonsense"], "nonsense"), (["--np", "0"], "0"), (["--hosts", "a b"], "a b"), (["now"], "now")],
)
def test_wrong_usage(arguments: list[str], named: str) -> None:
    done = run_hora("doctor", *arguments)
    assert done.returncode == 2 and named in done.stderr and "Traceback" not in done.stderr
