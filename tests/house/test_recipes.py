"""The recipe for a compressor in ARCHITECTURE.md, followed in a copy of the sources: then every front-end has it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import numpy as np
{imports}
hvd.init()
large = {make}
halved = hvd.allreduce(large, op=hvd.Sum, compression=hvd.Compression.fp16)
scaled = hvd.allreduce(large, op=hvd.Sum, compression=hvd.Compression.scaled_fp16)
assert np.isinf(np.asarray(halved)).all(), halved
np.testing.assert_allclose(np.asarray(scaled), 120000.0, rtol=1e-3)
print("followed", hvd.Compression.scaled_fp16.__module__)
"""

FRAMEWORKS = {
    "torch": ("import torch\nimport hora.torch as hvd", "torch.full((3,), 60000.0)"),
    "jax": ("import jax.numpy as jnp\nimport hora.jax as hvd", "jnp.full(3, 60000.0)"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, with the recipe's code in its places."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src" / "hora", copy / "hora", ignore=shutil.ignore_patterns("__pycache__"))
    recipe = (ROOT / "ARCHITECTURE.md").read_text().partition("**A compressor.**")[2]
    added, listed = re.findall(r"```python\n# (?:before|in) [^\n]*\n(.*?)```", recipe, flags=re.DOTALL)[:2]
    file = copy / "hora" / "ops" / "compression.py"
    text = file.read_text().replace("class Compression:\n", f"{added}\n\nclass Compression:\n")
    file.write_text(re.sub(r"(    bf16: .*\n)", rf"\1    {listed}", text))
    return copy


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_compressor_is_one_file_and_in_every_framework(copy: Path, tmp_path: Path, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    imports, make = FRAMEWORKS[framework]
    (tmp_path / "script.py").write_text(SCRIPT.format(imports=imports, make=make))
    done = subprocess.run(
        [sys.executable, "-m", "hora", "run", "-np", "2", sys.executable, str(tmp_path / "script.py")],
        env=clean_environment() | {"PYTHONPATH": str(copy)}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"followed hora.{framework}.compression") == 2
