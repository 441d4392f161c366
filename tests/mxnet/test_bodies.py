"""Every body of ``tests/mxnet/bodies.py`` on two ranks; the published example's shape; the examples. All in MXNet's own
environment, which `make test` sets up."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora
from tests.multi.crew import Crew
from tests.multi.serve import names_in
from tests.mxnet.worker import MODULES

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-mxnet" / "bin" / "python"
EXAMPLES = ROOT / "examples" / "mxnet"
NAMES = [name for module in MODULES for name in names_in(module)]

pytestmark = pytest.mark.skipif(
    not (ROOT / ".venv-mxnet" / ".ready").exists(), reason="there is no .venv-mxnet: make .venv-mxnet/.ready"
)

PUBLISHED = """
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
import horovod.mxnet as hvd

hvd.init()
context = mx.cpu(hvd.local_rank())
model = gluon.nn.HybridSequential()
with model.name_scope():
    model.add(gluon.nn.Conv2D(channels=4, kernel_size=3, activation="relu"))
    model.add(gluon.nn.MaxPool2D(pool_size=2, strides=2))
    model.add(gluon.nn.Flatten())
    model.add(gluon.nn.Dense(3))
model.cast("float32")
model.hybridize()
opt = mx.optimizer.create("sgd", momentum=0.9, learning_rate=0.01 * hvd.size())
model.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2), ctx=context)
params = model.collect_params()
if params is not None:
    hvd.broadcast_parameters(params, root_rank=0)
trainer = hvd.DistributedTrainer(params, opt, compression=hvd.Compression.none, gradient_predivide_factor=1.0)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
metric = mx.metric.Accuracy()
random = np.random.RandomState(hvd.rank())
for step in range(3):
    data = mx.nd.array(random.normal(size=(4, 1, 8, 8))).as_in_context(context)
    label = mx.nd.array(random.randint(3, size=4)).as_in_context(context)
    with autograd.record():
        output = model(data.astype("float32", copy=False))
        loss = loss_fn(output, label)
    loss.backward()
    trainer.step(4)
    metric.update([label], [output])
total = sum(float(p.data(context).abs().sum().asscalar()) for p in params.values())
print("weights %.6f" % total, flush=True)
"""


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2, "shm", "tests.mxnet.worker", start_timeout_s=100.0, python=str(PYTHON)) as crew:
        yield crew


@pytest.mark.parametrize("name", NAMES)
def test_body(crew: Crew, name: str) -> None:
    crew.run(name)


def test_a_script_for_horovod_runs_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PUBLISHED)
    done = run_hora("run", "--as-horovod", "-np", "2", PYTHON, script, timeout_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    sums = re.findall(r"weights ([\d.]+)", done.stdout)
    assert len(sums) == 2 and len(set(sums)) == 1


def test_the_example_learns_and_all_workers_end_with_the_same_weights() -> None:
    done = run_hora(
        "run", "-np", "2", PYTHON, EXAMPLES / "scaled.py", "--images", "2000", "--epochs", "1", timeout_s=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reached = re.findall(r"epoch 1  accuracy ([\d.]+)%", done.stdout)
    assert len(reached) == 2 and len(set(reached)) == 1 and float(reached[0]) > 30  # of ten patterns, by chance 10


def test_five_lines_scale_the_plain_script() -> None:
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("plain.py", "scaled.py"))
    new = [line for line in difflib.ndiff(before, after) if line.startswith("+") and line[2:].strip()]
    assert len(new) == 5 and all("hvd" in line for line in new)


def test_without_mxnet_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"pip install mxnet==1\.9\.1 numpy==1\.23\.5"):
        __import__("hora.mxnet")
