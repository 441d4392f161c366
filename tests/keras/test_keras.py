"""``hora.keras`` on every backend: two ranks run all bodies in one job a backend; each body is a test of its own."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.keras.surroundings import ROOT, surroundings
from tests.launch.jobs import clean_environment, run_hora

SOURCE = Path(__file__).with_name("bodies.py")
BACKENDS = ("torch", "tensorflow", "jax")
TIMEOUT_S = 210.0  # on a busy machine; a quiet one needs 15 to 30
# The names of the bodies, read and not imported: Keras must not come into the process that runs all other tests.
CASES = [
    pytest.param(backend, node.name, id=f"{backend}-{node.name}")
    for backend in BACKENDS
    for node in ast.parse(SOURCE.read_text()).body
    if isinstance(node, ast.FunctionDef)
    for decorator in node.decorator_list
    if getattr(decorator, "id", "") in (("body", "body_once") if backend == "torch" else ("body",))
]


class Jobs:
    """The last backend's job and what its ranks reported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failures: dict[str, list[dict[str, str]]] = {}
        self._said: dict[str, str] = {}

    def failure(self, backend: str, body: str) -> str:
        """What went wrong in a body, on which rank; empty if nothing did."""
        if backend not in self._said:
            self._run(backend)
        reports = self._failures[backend]
        if len(reports) < 2:
            return f"only {len(reports)} of 2 ranks reported.\n{self._said[backend]}"
        told = [report.get(body, "it did not come to that") for report in reports]
        wrong = [f"--- rank {rank} ---\n{text}" for rank, text in enumerate(told) if text]
        return "\n".join([*wrong, *([self._said[backend]] if any("Traceback" not in text for text in wrong) else [])])

    def _run(self, backend: str) -> None:
        for module in ("keras", backend):
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed")
        report = self._folder / backend
        try:
            done = run_hora(
                "run", "-np", "2", sys.executable, "-m", "tests.keras.bodies", report, timeout_s=TIMEOUT_S, cwd=ROOT,
                **surroundings(backend),
            )  # fmt: skip
            self._said[backend] = done.stdout + done.stderr
        except subprocess.TimeoutExpired as expired:
            self._said[backend] = f"no end after {TIMEOUT_S} s: {expired.output!r}"
        files = [Path(f"{report}.{rank}") for rank in range(2)]
        self._failures[backend] = [json.loads(file.read_text()) for file in files if file.exists()]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    yield Jobs(tmp_path_factory.mktemp("keras"))


@pytest.mark.timeout(240)  # the first of a backend runs the job for all
@pytest.mark.parametrize(("backend", "body"), CASES)
def test_body(jobs: Jobs, backend: str, body: str) -> None:
    failure = jobs.failure(backend, body)
    assert not failure, failure


# --- one process ------------------------------------------------------------------------------------------------------


def run(program: str, backend: str = "torch", **more: str) -> str:
    """What a program says that must end well."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(**surroundings(backend), **more),
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The names, what importing brings, and the examples of the docstrings.
ALONE = """
import doctest, importlib, inspect, pkgutil, sys
import keras
before = set(sys.modules)
import hora.keras as hvd
brought = set(sys.modules) - before
heavy = {"cloudpickle", "rich", "click", "psutil", "asyncio", "hora.torch", "hora.tensorflow", "hora.jax",
         "hora.keras.optimizer", "hora.keras.callbacks", "hora.engine.hub", "hora.engine.message_backend",
         "hora.launch"}
assert not brought & heavy, brought & heavy

names = {}
exec("from hora.keras import *", names)
assert set(hvd.__all__) <= set(names) and len(hvd.__all__) == len(set(hvd.__all__))
assert sorted(hvd.__all__, key=str) and hvd.Compression is importlib.import_module("hora.torch").Compression
try:
    hvd.DistributedOptimiser
except AttributeError as error:
    assert "'hora.keras' has no attribute 'DistributedOptimiser'" in str(error)
assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]

wanted = ["optimizer", "name", "device_dense", "device_sparse", "compression", "sparse_as_dense",
          "gradient_predivide_factor", "op", "backward_passes_per_step", "average_aggregated_gradients", "num_groups",
          "groups", "process_set", "scale_local_gradients"]
assert list(inspect.signature(hvd.DistributedOptimizer).parameters) == wanted

tried = 0
for found in pkgutil.walk_packages(hvd.__path__, "hora.keras."):
    module = importlib.import_module(found.name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert not result.failed, found.name
    tried += result.attempted
result = doctest.testmod(hvd, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
assert not result.failed and tried > 10
print("fine")
"""


SAVING = """
import numpy
hvd.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.75)), loss="mse")
model.fit(numpy.ones((4, 2)), numpy.ones((4, 1)), verbose=0)
model.save({file!r})
"""


def test_without_keras_there_is_one_clear_error() -> None:
    """Also if Keras is there and what it runs on is not, and if it is an older Keras."""
    program = """
import sys, types
sys.modules["keras"] = {fake}
try:
    import hora.keras
except ImportError as error:
    print(error)
"""
    assert "hora.keras needs Keras 3" in (said := run(program.format(fake="None"))) and "pip install" in said
    older = "types.SimpleNamespace(__version__='2.15.0')"
    assert "Keras 2.15.0 is installed here" in run(program.format(fake=older))


SAVED = """
import sys, warnings
warnings.simplefilter("ignore")
import keras
model = keras.models.load_model({file!r})
assert not any(name.partition(".")[0] == "hora" for name in sys.modules)
assert type(model.optimizer).__name__ == "SGD" and model.optimizer.get_config()["momentum"] == 0.75

sys.modules["torch"] = None
import numpy, hora.keras as hvd
hvd.init()
model = hvd.load_model({file!r})
model.fit(numpy.ones((4, 2)), numpy.ones((4, 1)), verbose=0,
          callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
print("fine")
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_what_is_saved_needs_no_hora_and_hora_needs_no_torch(tmp_path: Path) -> None:
    """A file of a torch run, read by Keras on JAX, in a process that has not heard of Hora yet; and torch is hidden."""
    for module in ("keras", "torch", "jax"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    file = str(tmp_path / "model.keras")
    assert run(ALONE + SAVING.format(file=file)) == "fine\n"
    assert run(SAVED.format(file=file), "jax") == "fine\n"
