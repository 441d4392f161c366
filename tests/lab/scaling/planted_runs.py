"""Plants twelve bottlenecks, asks `hora lab scaling` for each what it is, and counts how often it is named right.

    python -m tests.lab.scaling.planted_runs [--repeats 3] [NAME …]

It takes some fifteen minutes. The links need root: they are between two hosts made of namespaces (tests/cluster). On a
machine that others use too, put ``chrt -r 10`` before it. What is printed at the end is the table in docs/scaling.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.hosts import Cluster
from tests.cluster.sshd import Sshd
from tests.launch.jobs import clean_environment

PLANT = Path(__file__).parent / "plant"
TIMEOUT_S = 1800.0


class Planted(NamedTuple):
    """A bottleneck, and how it is named."""

    name: str
    what: str  # is planted
    kind: str
    arguments: str  # of `hora lab scaling`
    plant: str = ""  # for sitecustomize
    rate: str = ""  # of the link between two hosts
    rank: int | None = None


SMALL = "synthetic --set model=mnist_horovod --batch 64 --threads 1 --steps 16"
PLANTED = (
    Planted("clean", "nothing: ResNet-56, 3 MB of gradients", "compute",
            "synthetic --set model=resnet56v1 --batch 16 --threads 1 --steps 20"),
    Planted("clean-mnist", "nothing: MNIST, 13 MB of gradients", "compute",
            "synthetic --set model=mnist --batch 100 --threads 1 --steps 30"),
    Planted("slow-loader", "a loader that waits 200 ms a batch", "input",
            "mnist --set network=horovod --batch 64 --threads 1 --steps 16", plant="load:200"),
    Planted("slow-decoder", "a loader that computes 150 ms a batch", "input",
            "mnist --set network=horovod --batch 64 --threads 1 --steps 16", plant="decode:150"),
    Planted("thin-link", "a link of 200 Mbit/s, 13 MB of gradients", "bandwidth",
            "synthetic --set model=mnist --batch 32 --threads 1 --steps 16", rate="200mbit"),
    Planted("link", "a link of 1 Gbit/s, 47 MB of gradients", "bandwidth",
            "synthetic --set model=resnet18 --set image_size=32 --batch 8 --threads 1 --steps 16", rate="1gbit"),
    Planted("late-link", "100 ms of latency, 87 KB of gradients", "latency",
            f"{SMALL} --transport gloo", plant="delay:100"),
    Planted("late-often", "20 ms of latency, many exchanges a step, 3 MB of gradients", "latency",
            "synthetic --set model=resnet56v1 --batch 2 --threads 1 --transport gloo --steps 16", plant="delay:20"),
    Planted("slow-rank", "rank 1 waits 200 ms a step", "imbalance", SMALL, plant="slow:200:1", rank=1),
    Planted("busy-rank", "rank 0 computes 150 ms more a step", "imbalance", SMALL, plant="busy:150:0", rank=0),
    Planted("threads", "two workers with four threads each, on two cores", "oversubscription",
            "synthetic --set model=mnist --batch 64 --threads 4 --steps 20"),
    Planted("workers", "four workers on two cores", "oversubscription",
            "synthetic --set model=mnist --batch 64 --workers 1,4 --threads 1 --steps 20"),
)  # fmt: skip


def ask(planted: Planted, place: Path, cluster: Cluster | None = None, repeats: int = 3) -> dict[str, Any]:
    """The experiment, as `hora lab scaling` wrote it."""
    file = place / f"{planted.name}.json"
    command = [
        sys.executable, "-m", "hora", "lab", "scaling", *planted.arguments.split(), "--repeats", str(repeats),
        "--out", str(place / planted.name), "--runs", str(place / "runs"), "--json", str(file),
    ]  # fmt: skip
    if planted.arguments.startswith("mnist"):
        command += ["--set", f"data={digits(place)}"]
    variables = clean_environment()
    if planted.plant:
        variables |= {"PLANT": planted.plant, "PYTHONPATH": f"{PLANT}{os.pathsep}{variables['PYTHONPATH']}"}
    if planted.rate:
        assert cluster is not None
        with contextlib.ExitStack() as stack:
            for host in cluster.hosts:
                stack.enter_context(host.limited(planted.rate))
            done = cluster.login.run([*command, "-H", "h1:1,h2:1"], TIMEOUT_S)
    else:
        done = subprocess.run(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    print(done.stdout, flush=True)
    found: dict[str, Any] = json.loads(file.read_text()) if done.returncode == 0 else {"findings": []}
    found["findings"] = found["findings"] or [
        {"kind": f"nothing, exit code {done.returncode}", "share": 0, "rank": None}
    ]
    return found


def digits(place: Path) -> Path:
    """A data set to load."""
    folder = place / "digits"
    if not folder.exists():
        subprocess.run(
            [sys.executable, "-m", "hora", "data", "make", "digits", "--to", str(folder), "--samples", "2000", "--test",
             "100"], check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S,
        )  # fmt: skip
    return folder


def right(planted: Planted, found: dict[str, Any]) -> bool:
    first = found["findings"][0]
    return bool(first["kind"] == planted.kind and (planted.rank is None or first["rank"] == planted.rank))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.scaling.planted_runs", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    chosen = [planted for planted in PLANTED if not given.names or planted.name in given.names]
    lines, count = [], 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        cluster = None
        if any(planted.rate for planted in chosen):
            (place / "cluster").mkdir()
            cluster = Cluster(2, place / "cluster", [place])
            stack.callback(cluster.close)
            Sshd(cluster)
        for planted in chosen:
            print(f"---- {planted.name}: {planted.what}", flush=True)
            found = ask(planted, place, cluster, given.repeats)
            first, good = found["findings"][0], right(planted, found)
            count += good
            rank = "" if first["rank"] is None else f" (rank {first['rank']})"
            also = ", ".join(f"{other['kind']} {other['share']:.0%}" for other in found["findings"][1:])
            lines.append(
                f"| {planted.what} | {planted.kind} | {first['kind']}{rank}, {first['share']:.0%} | {also} | "
                f"{'yes' if good else '**no**'} |"
            )
    print("| planted | is | named, with its share | also | right |\n| --- | --- | --- | --- | --- |")
    print("\n".join(lines))
    print(f"{count} of {len(chosen)} named right")
    return 0 if count >= 0.9 * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
