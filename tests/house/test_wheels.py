"""What `make wheels` does, with this machine's compiler: the wheel is built from the source distribution, installed
where no compiler can be found, and two workers add."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_wheel_installs_without_a_compiler_and_works(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler: apt install gcc")
    command = [sys.executable, str(ROOT / ".ci" / "wheels.py"), "--here", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two workers added over shared memory" in done.stdout
    sdist, wheel = sorted(tmp_path.iterdir(), key=lambda path: path.suffix)
    assert sdist.name.endswith(".tar.gz") and wheel.name.endswith(".whl")
