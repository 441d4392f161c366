"""The variables of a process in which a test uses Keras."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT", "XLA_FLAGS", "surroundings"]

ROOT = Path(__file__).parents[2]
# Programs of tests are compiled once and run a few times: how fast they are does not matter.
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def surroundings(backend: str) -> dict[str, str]:
    """On that backend."""
    return {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        **({"XLA_FLAGS": XLA_FLAGS} if backend == "jax" else {}),
    }
