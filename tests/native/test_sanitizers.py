"""The C core on real threads under the address, undefined and thread sanitizers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.native.planted import BUGS, Bug, plant
from tests.native.simulator import NATIVE, build_stress, simulate

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
SECONDS = 12
SANITIZERS = ["address,undefined", "thread"]
FREES_WHAT_IS_NOT_ITS_OWN = Bug(
    "memory is freed that was not allocated",
    "engine.c",
    (("    if (t->in != &t->one_in) {\n        free(t->in);", "    if (true) {\n        free(t->in);"),),
)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_random_programs_on_threads(sanitizer: str, tmp_path: Path) -> None:
    build_stress(NATIVE, tmp_path / "stress", sanitizer)
    done = simulate(tmp_path / "stress", SECONDS, seed=20261118)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("sanitizer", "bug"), list(zip(SANITIZERS, [FREES_WHAT_IS_NOT_ITS_OWN, BUGS["lets-go-in-no-order"]], strict=True))
)
def test_a_planted_bug_is_found(sanitizer: str, bug: Bug, tmp_path: Path) -> None:
    build_stress(plant(bug, tmp_path), tmp_path / "stress", sanitizer)
    done = simulate(tmp_path / "stress", SECONDS, seed=1)
    assert done.returncode != 0 and "Sanitizer" in done.stderr, done.stdout + done.stderr
