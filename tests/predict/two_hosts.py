"""Calibrates on one host, predicts two hosts over a capped link, and measures them.

    python -m tests.predict.two_hosts [--rates 1gbit,500mbit]

It takes some ten minutes, and needs root: the hosts are namespaces (tests/cluster), with a worker on each, so that each
worker has a core as it had in the calibration. What is printed at the end is the table in docs/predict.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.hosts import Cluster
from tests.cluster.sshd import Sshd

HORA = [sys.executable, "-m", "hora"]
LATENCY = "100us"  # what somebody would write down for such a link
# What `hora lab calibrate` calls a network, and how `hora train synthetic` trains the same.
NETWORKS = {
    "resnet50": ["--model", "resnet50", "--image-size", "64", "--batch", "4", "--num-batches", "30"],
    "mnist": ["--model", "mnist_horovod", "--batch", "64", "--num-batches", "300"],
}
TIMEOUT_S = 900.0
BOUND = 0.15


def predicted_s(calibration: Path, rate: str, place: Path) -> tuple[float, float, float]:
    """A step, and its 90 % interval."""
    batch = json.loads(calibration.read_text())["batch"]
    file = place / "plan.json"
    subprocess.run(
        [*HORA, "plan", "--workers", "2", "--per-host", "1", "--batch", str(batch), "--calibration", str(calibration),
         "--link", f"{rate}:{LATENCY}", "--json", str(file)],
        check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S,
    )  # fmt: skip
    seen = json.loads(file.read_text())["predicted"]
    step = seen["here"]["step_s"]
    return float(step["middle"]), float(step["low"]), float(step["high"])


def measured_s(cluster: Cluster, name: str, rate: str, place: Path) -> float:
    """A step of two workers, one on each host: all samples by all time, after ten steps to warm up."""
    out, file = place / f"run-{name}-{rate}", place / f"{name}-{rate}.json"
    done = cluster.login.run(
        [*HORA, "train", "synthetic", "-H", "h1:1,h2:1", "--form", "tf", *NETWORKS[name], "--threads-per-worker", "1",
         "--out", str(out), "--json", str(file)],
        TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout)
    found = json.loads(file.read_text())
    return 2 * int(NETWORKS[name][NETWORKS[name].index("--batch") + 1]) / float(found["images_per_s"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.predict.two_hosts", description=__doc__)
    parser.add_argument("--rates", default="1gbit,500mbit")
    rates = parser.parse_args().rates.split(",")
    worst = 0.0
    lines = []
    with tempfile.TemporaryDirectory(prefix="two-hosts-") as folder:
        place = Path(folder)
        (place / "cluster").mkdir()
        cluster = Cluster(2, place / "cluster", [place])
        try:
            Sshd(cluster)
            for name in NETWORKS:
                calibration = place / f"{name}.calibration.json"
                subprocess.run([*HORA, "lab", "calibrate", "--model", name, "-o", str(calibration)], check=True)
                for rate in rates:
                    guess, low, high = predicted_s(calibration, rate, place)
                    one, two = cluster.hosts
                    with one.limited(rate), two.limited(rate):
                        took = measured_s(cluster, name, rate, place)
                    worst = max(worst, abs(guess / took - 1))
                    lines.append(
                        f"| {name} | {rate} | {1e3 * guess:.0f} ms ({1e3 * low:.0f} to {1e3 * high:.0f}) | "
                        f"{1e3 * took:.0f} ms | {guess / took - 1:+.0%} |"
                    )
                    print(lines[-1], flush=True)
        finally:
            cluster.close()
    print("| network | link | predicted | measured | error |\n| --- | --- | --- | --- | --- |")
    print("\n".join(lines))
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
