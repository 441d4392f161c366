"""``python -m tests.launch.elastic.horovod_examples FOLDER``: Horovod's published elastic examples, with kills.

FOLDER is ``examples/elastic`` of its repository, which is not a part of this one. Each script runs unmodified with
``hora run --as-horovod``, once for every rank that is killed (SIGKILL) when its training has begun; it must then train
on and end well, or come as far as ``enough`` says. What stands in for downloads and for large
images is put on the path: a small MNIST, and folders of small pictures. torchvision must be there (``--path``).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tests.launch.jobs import clean_environment, hora


class Example(NamedTuple):
    path: str
    arguments: tuple[str, ...]
    begun: str  # in its output, when it trains
    enough: str = ""  # in its output after a replacement has joined: then it is stopped, because it is long


MODEL = ("--model", "resnet18", "--batch-size", "1", "--num-warmup-batches", "1", "--num-batches-per-iter", "1")
EXAMPLES = (
    Example("pytorch/pytorch_mnist_elastic.py", ("--epochs", "40", "--data-dir", "{data}"), r"Train Epoch: 2 "),
    Example("pytorch/pytorch_synthetic_benchmark_elastic.py", (*MODEL, "--num-iters", "40"), r"Iter #1:"),
    Example("pytorch/pytorch_imagenet_resnet50_elastic.py",
            ("--train-dir", "{data}/pictures", "--val-dir", "{data}/pictures", "--epochs", "2", "--batch-size", "1",
             "--val-batch-size", "4", "--batches-per-commit", "1"), r"Train Epoch +#1:.*[1-9]/"),
    Example("tensorflow2/tensorflow2_mnist_elastic.py", (), r"Step #0"),
    Example("tensorflow2/tensorflow2_keras_mnist_elastic.py", (), r"\b[2-9]/\d+ .*accuracy", r"\b[3-9]/\d+ .*accuracy"),
    Example("tensorflow2/tensorflow2_synthetic_benchmark_elastic.py",
            ("--model", "MobileNetV2", "--batch-size", "1", "--num-warmup-batches", "2", "--num-batches-per-iter", "2",
             "--num-iters", "40", "--no-cuda"), r"Iter #1:"),
    Example("tensorflow/tensorflow_keras_mnist_elastic.py",
            ("--batches-per-epoch", "60", "--epochs", "40", "--batch-size", "8"), r"\b[2-9]/\d+ .*accuracy",
            r"\b[3-9]/\d+ .*accuracy"),
)  # fmt: skip

# Keras asks for MNIST under a name per rank, and checks what it downloads. One script was written for TensorFlow 1, of
# which it needs three names.
STAND_INS = """
import importlib.abc, importlib.util, os, sys

def small_mnist(module):
    import numpy as np
    def load_data(path="mnist.npz"):
        data = np.load(os.environ["SMALL_MNIST"])
        return (data["x"], data["y"]), (data["x"][:200], data["y"][:200])
    module.load_data = load_data

def tensorflow_1(module):
    if "tensorflow/tensorflow_" in " ".join(sys.orig_argv):
        module.ConfigProto, module.Session = module.compat.v1.ConfigProto, module.compat.v1.Session
        module.keras.backend.set_session = lambda session: None

PATCHES = {"keras.src.datasets.mnist": small_mnist, "tensorflow": tensorflow_1}

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        patch = PATCHES.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        loader, load = spec.loader, spec.loader.exec_module
        def exec_module(module):
            load(module)
            patch(module)
        loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def make_data(folder: Path) -> None:
    """A small MNIST, as torchvision and as Keras want it, and folders of pictures."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (2000, 28, 28), np.uint8), rng.integers(0, 10, 2000).astype(np.uint8)
    np.savez(folder / "mnist.npz", x=x, y=y)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 2000), ("t10k", 200)):
        head = (2051).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(head + x[:count].tobytes())
        head = (2049).to_bytes(4, "big") + count.to_bytes(4, "big")
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(head + y[:count].tobytes())
    from PIL import Image

    for kind in ("a", "b"):
        (folder / "pictures" / kind).mkdir(parents=True)
        for number in range(12):
            picture = Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8))
            picture.save(folder / "pictures" / kind / f"{number}.png")
    (folder / "stand_ins").mkdir()
    (folder / "stand_ins" / "sitecustomize.py").write_text(STAND_INS)


class Run:
    """One example with one kill."""

    def __init__(self, example: Example, script: Path, data: Path, path: str) -> None:
        place = Path(tempfile.mkdtemp(dir=data))
        arguments = [word.format(data=data) for word in example.arguments]
        command = hora(
            "run",
            "--as-horovod",
            "--verbose",
            "--min-np",
            "1",
            "--max-np",
            "2",
            "--start-timeout",
            "300",
            script,
            *arguments,
        )
        environment = clean_environment(
            SMALL_MNIST=str(data / "mnist.npz"), TF_CPP_MIN_LOG_LEVEL="2", PYTHONWARNINGS="ignore", HOME=str(data),
            PYTHONPATH=os.pathsep.join(filter(None, [str(data / "stand_ins"), path, os.environ.get("PYTHONPATH", "")])),
        )  # fmt: skip
        self.text, self.joined = "", False
        self._process = subprocess.Popen(
            command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            self.text += re.sub(r"\x1b\[[0-9;]*m", "", data.decode(errors="replace").replace("\r", "\n"))

    def until(self, pattern: str, since: int, deadline: float) -> bool:
        """False if it ended, or time is up."""
        while not re.search(pattern, self.text[since:]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                return bool(re.search(pattern, self.text[since:]))
            time.sleep(0.05)
        return True

    def check(self, example: Example, rank: int, deadline_s: float) -> str:
        """What went wrong; empty if all went well."""
        deadline = time.monotonic() + deadline_s
        try:
            if not self.until(example.begun, 0, deadline):
                return "did not begin to train"
            pid = int(re.findall(rf"started worker {rank}: pid (\d+)", self.text)[0])
            os.kill(pid, signal.SIGKILL)
            since = len(self.text)
            if not self.until(r"generation \d+: workers \d", since, deadline):
                return "did not go on after the kill"
            self.joined = self.until(r"generation \d+: workers \d+, \d", since, deadline)  # or it ended before
            since = len(self.text)
            if example.enough and self.until(example.enough, since, deadline):
                return ""
            try:
                code = self._process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return "was still running at the end"
            return "" if code == 0 else f"ended with exit code {code}"
        finally:
            if self._process.poll() is None:
                self._process.terminate()
                try:
                    self._process.wait(20)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._reader.join(5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="those whose path has this")
    parser.add_argument("--rank", type=int, action="append", help="kill only this rank")
    parser.add_argument("--path", default="", help="more folders to import from, such as torchvision's")
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds for each run")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for example in EXAMPLES:
            if given.only not in example.path:
                continue
            for rank in given.rank or (0, 1):
                run = Run(example, (given.folder / example.path).resolve(), Path(folder), given.path)
                wrong = run.check(example, rank, given.deadline)
                failed += bool(wrong)
                well = "survived, and a replacement joined" if run.joined else "survived"
                print(f"{example.path}, rank {rank} killed: {wrong or well}", flush=True)
                if wrong:
                    print(run.text[-3000:])
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
