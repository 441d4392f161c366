"""ARCHITECTURE.md's steps are what a real gradient of ``DistributedOptimizer`` passes, on one host and on two.

The core is compiled so that it notes which of its functions are entered, and Python's are noted by its profiler. What
the document names is compared with that: everything it names is passed, in its order, and no other part of the engine.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.multi.hosts import Hosts

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0

Times = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    setup = runpy.run_path(str(ROOT / "setup.py"))
    compiler, made = setup["compiler"](), tmp_path_factory.mktemp("core") / "_core.so"
    if shutil.which(compiler[0]) is None or shutil.which("nm") is None:
        pytest.skip("no C compiler, or no nm")
    flags = [flag for flag in setup["COMPILE_FLAGS"] if flag != "-O3"]
    sources = [*sorted((ROOT / "native").glob("*.c")), Path(__file__).with_name("passed.c")]
    # The kernels are chosen while the library is loaded, when nothing can be noted yet.
    noted = ["-O1", "-finstrument-functions", "-finstrument-functions-exclude-file-list=kernels.c,mac.c"]
    noted.append("-Wl,-Bsymbolic")  # libc has functions of these names too, which do nothing
    command = [*compiler, *flags, *noted, f"-I{ROOT / 'native'}", *map(str, sources), "-o", str(made)]
    subprocess.run([*command, *setup["LIBRARIES"]], check=True, timeout=DEADLINE_S, capture_output=True)
    return made


def run(hosts: list[str], library: Path, tmp_path: Path) -> list[dict[str, Times]]:
    """What each rank passed, by phase."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w+") as log:
        job = Hosts(hosts, [sys.executable, "-m", "tests.road.worker", str(library)], environment, log)
        try:
            code = job.wait(DEADLINE_S)
        finally:
            job.close()
        log.seek(0)
        said = log.read()
    assert code == 0, said
    found = dict(json.loads(line.removeprefix("PASSED ")) for line in said.splitlines() if line.startswith("PASSED "))
    return [found[rank] for rank in range(len(hosts))]


def named() -> tuple[list[str], list[str]]:
    """What ARCHITECTURE.md says a gradient passes: the functions of its steps, and those between hosts."""
    life = (ROOT / "ARCHITECTURE.md").read_text().split("## A gradient's life in eight steps\n")[1].split("\n## ")[0]
    steps, _, between = life.partition("On several hosts")
    listed = re.findall(r"^\d\. \*\*.*?\*\* `([^`]+)`,\s+`(\w+)`", steps, re.M | re.S)
    assert len(listed) == 8, listed
    file, functions = "", []
    for mention in re.finditer(r"`(native/\w+\.c)`(?:,\s+`(\w+)`)?|\(`(\w+)`\)", between):
        file = mention[1] or file
        if function := mention[2] or mention[3]:
            functions.append(_key(file, function))
    return [_key(path, function) for path, function in listed], functions


def _key(path: str, function: str) -> str:
    """As the worker says it; a function of the core must be in the file that is named."""
    if path.endswith(".py"):
        return f"{path}: {function}"
    assert re.search(rf"^[a-z].*\b{function}\(.*\{{", (ROOT / path).read_text(), re.M), f"{function} is not in {path}"
    return f"native: {function}"


def first(ranks: list[dict[str, Times]], phase: str, key: str) -> int:
    """When the first rank passed it."""
    times = [passed[phase][key][0] for passed in ranks if key in passed[phase]]
    assert times, f"no gradient passed {key} in the phase {phase!r}"
    return min(times)


def check_steps(ranks: list[dict[str, Times]], steps: list[str]) -> None:
    prepared, *under_way, ended = steps
    file = ended.partition(":")[0]
    for passed in ranks:
        assert prepared in passed["prepared"], "it is not prepared"
        assert prepared not in passed["steady"], "it is prepared once, and not again"
        engine = {key for key in passed["steady"] if key.startswith("src/hora/engine/")}
        # What is under way is an object, and who passes by helps. There is nothing else in the engine's Python.
        assert engine <= {*under_way, ended, f"{file}: __init__", "src/hora/engine/table.py: help"}
    times = [first(ranks, "steady", key) for key in under_way]
    assert times == sorted(times), dict(zip(under_way, times, strict=True))
    assert all(passed["steady"][ended][1] > times[-1] for passed in ranks), "it was waited for until it was done"


def test_the_eight_steps_of_a_gradient_on_one_host(library: Path, tmp_path: Path) -> None:
    steps, _ = named()
    check_steps(run(["h1", "h1"], library, tmp_path), steps)


def test_the_same_on_two_hosts_with_one_step_between(library: Path, tmp_path: Path) -> None:
    ranks = run(["h1", "h1", "h2", "h2"], library, tmp_path)
    steps, (tell, consider, close_abroad, sum_here, begin_job, get_on, take_here, take_early) = named()
    fifth = steps.index("native: close_round")
    check_steps(ranks, [*steps[:fifth], tell, consider, close_abroad, *steps[fifth + 1 :]])
    check_steps(ranks, [*steps[:fifth], tell, consider, close_abroad, sum_here, take_here, steps[-1]])
    assert first(ranks, "steady", begin_job) > first(ranks, "steady", close_abroad)
    for asked_again_and_again in (get_on, take_early):
        assert first(ranks, "steady", asked_again_and_again) > first(ranks, "steady", "native: arrive")
    assert not any("native: close_round" in passed["steady"] for passed in ranks)
