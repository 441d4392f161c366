"""The examples run, learn, and need no launcher for one worker."""

from __future__ import annotations

import difflib
import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "examples" / "first_job.py"
MNIST = ROOT / "examples" / "mnist"
TIMEOUT_S = 100
SLOW = pytest.mark.slow
TWO_WORKERS = ("-m", "hora", "run", "-np", "2", sys.executable)


def run(*command: str, cwd: Path | None = None, timeout_s: float = TIMEOUT_S) -> str:
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=True,
    )
    try:
        said, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
        raise
    assert process.returncode == 0, said + complaints
    return said


@SLOW
@pytest.mark.parametrize("launcher", [(), TWO_WORKERS], ids=["alone", "two"])
def test_first_job_learns(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    file = tmp_path / "result.json"
    said = run(*launcher, str(JOB), "--epochs", "2", "--images", "4096", "--json", str(file))
    result = json.loads(file.read_text())
    assert result["workers"] == (2 if launcher else 1)
    first, last = result["epochs"]
    assert last["loss"] < first["loss"] and last["accuracy"] > 0.2  # of ten digits, by chance 0.1
    assert said.count("epoch ") == 2  # one rank speaks


@pytest.mark.long
@pytest.mark.timeout(300)  # three commands, one of which starts workers four times
def test_demo_compares_and_writes_the_report(tmp_path: Path) -> None:
    """In small: a small network on digits that are generated, ten steps a run."""
    demo = str(ROOT / "examples" / "demo.py")
    small = ("--images", "512", "--epochs", "0", "--steps", "10", "--repeats", "1", "--set", "network=horovod")
    said = run(demo, *small, cwd=tmp_path, timeout_s=280)
    assert "speed-up" in said and "1.00" in said
    table = said[said.index("speed-up") :].splitlines()
    assert [line.split()[0] for line in table if line.split()[:2] in (["1", "64"], ["2", "64"])] == ["1", "2"]
    assert "Bottleneck: " in said
    page = tmp_path / "runs" / "demo" / "report.html"
    picture = page.with_name("report-plots") / "way-scaling-weak.png"
    assert f"The same as a picture: {picture}" in said.splitlines() and picture.stat().st_size > 1000
    assert said.splitlines()[-1] == f"The report is {page}: open it in a browser."
    assert "From ideal to measured, 2 workers" in said[said.index("lab report") :], "the waterfall is the end"
    assert "2 workers" in page.read_text() and (tmp_path / "runs" / "demo" / "report-plots" / "speed-up.png").exists()


def changes() -> tuple[list[str], list[str]]:
    """The lines of plain.py that scaled.py has not, and the other way round; empty ones do not count."""
    before, after = ((MNIST / name).read_text().splitlines() for name in ("plain.py", "scaled.py"))
    delta = [line for line in difflib.ndiff(before, after) if line[2:].strip()]
    return [line[2:] for line in delta if line[0] == "-"], [line[2:] for line in delta if line[0] == "+"]


def test_five_lines_scale_the_plain_script() -> None:
    gone, new = changes()
    assert len(new) == 5 and len(gone) <= 5, (gone, new)
    assert all("hvd" in line for line in new)
    assert "hora" not in (MNIST / "plain.py").read_text().partition('"""\n\n')[2]


def test_the_readme_shows_exactly_these_lines() -> None:
    diff = (ROOT / "README.md").read_text().split("```diff\n")[1].split("```")[0].splitlines()
    gone, new = changes()
    assert [line[1:] for line in diff if line.startswith("-")] == gone
    assert [line[1:] for line in diff if line.startswith("+")] == new
    plain = (MNIST / "plain.py").read_text()
    for line in diff:
        if line.startswith(" ") and line.strip() != "...":
            assert f"{line[1:]}\n" in plain


@SLOW
def test_the_mnist_pair_learns_and_all_workers_end_with_the_same_weights() -> None:
    quick = ("--images", "4096", "--epochs", "2", "--lr", "0.03")
    said = {
        "plain": run(str(MNIST / "plain.py"), *quick),
        "scaled": run(*TWO_WORKERS, str(MNIST / "scaled.py"), *quick),
    }
    for name, lines in ((name, text.splitlines()) for name, text in said.items()):
        assert any("drawn here instead of MNIST" in line for line in lines)
        found = [re.search(r"epoch (\d)  accuracy ([\d.]+)%", line) for line in lines]
        reached = [float(match[2]) for match in found if match and match[1] == "2"]
        assert len(reached) == (1 if name == "plain" else 2)
        assert len(set(reached)) == 1 and reached[0] > 20  # percent, of ten digits, by chance 10


@SLOW
def test_the_real_files_are_read_if_there_are_any(tmp_path: Path) -> None:
    def idx(name: str, *sizes: int) -> None:
        count = 1
        for size in sizes:
            count *= size
        head = struct.pack(f">I{len(sizes)}I", 0x0800 | len(sizes), *sizes)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(head + bytes(i % 10 for i in range(count))))

    for part, count in (("train", 128), ("t10k", 32)):
        idx(f"{part}-images-idx3-ubyte", count, 28, 28)
        idx(f"{part}-labels-idx1-ubyte", count)
    said = run(str(MNIST / "plain.py"), "--data", str(tmp_path), "--epochs", "1")
    assert "drawn" not in said and "epoch 1" in said
