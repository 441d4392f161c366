"""Plants twenty bottlenecks, asks `hora lab scaling` for each what it is, follows its advice where it can be followed,
and counts how often the cause was named right and the gain was what had been said.

    python -m tests.lab.scaling.planted_runs [--repeats 2] [--no-follow] [--keep FOLDER] [NAME …]

It takes some twenty-five minutes on two cores that nobody else uses. The links need root: they are between two hosts
made of namespaces (tests/cluster). What is printed at the end is the table in docs/scaling.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.hosts import Cluster
from tests.cluster.sshd import Sshd
from tests.launch.jobs import clean_environment

PLANT = Path(__file__).parent / "plant" / "sitecustomize.py"
TIMEOUT_S = 1800.0
WORTH = 0.05  # of a step; advice about less is about nothing
CLOSE = 0.05  # a predicted gain is right within so much of the measured


class Planted(NamedTuple):
    """A bottleneck, and how it is named."""

    name: str
    what: str  # is planted
    kind: str
    arguments: str  # of `hora lab scaling`
    plant: str = ""  # for sitecustomize
    hosts: int = 1
    rate: str = ""  # of the link between two hosts
    hogs: int = 0  # other processes that compute
    rank: int | None = None
    mended: str | None = None  # the plant when advice is followed that no option can follow; "" is none left
    told: str = ""  # what the finding's title must say too


SMALL = "synthetic --set model=mnist_horovod --batch 64 --threads 1 --steps 24"
MNIST = "mnist --set network=horovod --batch 64 --threads 1 --steps 16"
PLANTED = (
    Planted("clean", "nothing: ResNet-56, 3 MB of gradients", "compute",
            "synthetic --set model=resnet56v1 --batch 16 --threads 1 --steps 20"),
    Planted("clean-mnist", "nothing: MNIST, 13 MB of gradients", "compute",
            "synthetic --set model=mnist --batch 100 --threads 1 --steps 30"),
    Planted("slow-loader", "a loader that waits 200 ms a batch", "input", MNIST, plant="load:200", mended=""),
    Planted("slow-decoder", "a loader that computes 150 ms a batch", "input", MNIST, plant="decode:150",
            mended="decode:75"),
    Planted("slow-disk", "a disk that gives 250 KB/s, 50 KB a batch", "input", MNIST, plant="disk:250", mended=""),
    Planted("slow-rank", "rank 1 waits 200 ms a step", "imbalance", SMALL, plant="slow:200:1", rank=1, mended=""),
    Planted("busy-rank", "rank 0 computes 150 ms more a step", "imbalance", SMALL, plant="busy:150:0", rank=0,
            mended=""),
    Planted("jitter", "both ranks wait by chance, 300 ms a step at most", "imbalance", SMALL, plant="jitter:300"),
    Planted("threads", "two workers with four threads each, on two cores", "oversubscription",
            "synthetic --set model=mnist --batch 64 --threads 4 --steps 20"),
    Planted("workers", "four workers on two cores", "oversubscription",
            "synthetic --set model=mnist --batch 64 --workers 1,4 --threads 1 --steps 20"),
    Planted("memory", "every step copies 2 GB, of a memory that one core saturates", "machine", SMALL,
            plant="memory:2048", told="slow each other down"),
    Planted("other-job", "two other processes compute on the same two cores", "machine", SMALL, hogs=2,
            told="other processes"),
    Planted("small-batch", "strong scaling of a batch of 4; each step computes 60 ms whatever its batch", "small batch",
            "synthetic --set model=resnet56v1 --strong --batch 4 --threads 1 --steps 20", plant="busy:60"),
    Planted("checkpoints", "a checkpoint that stalls for 1.5 s, four an epoch of 15 steps", "pauses",
            f"{MNIST} --pauses --set save_every=0.25", plant="save:1500"),
    Planted("validation", "a validation that takes 2 s more, after every epoch of 15 steps", "pauses",
            f"{MNIST} --pauses", plant="validate:2000", mended="validate:1000"),
    Planted("late-link", "100 ms of latency, 87 KB of gradients", "latency",
            f"{SMALL} --transport gloo", plant="delay:100"),
    Planted("late-often", "20 ms of latency, many exchanges a step, 3 MB of gradients", "latency",
            "synthetic --set model=resnet56v1 --batch 2 --threads 1 --transport gloo --steps 16", plant="delay:20"),
    Planted("thin-link", "two hosts, a link of 200 Mbit/s, 13 MB of gradients", "bandwidth",
            "synthetic --set model=mnist --batch 32 --threads 1 --steps 16", hosts=2, rate="200mbit"),
    Planted("hosts-slow-rank", "two hosts, rank 1 waits 300 ms a step", "imbalance",
            SMALL, plant="slow:300:1", hosts=2, rank=1, mended=""),
    Planted("hosts-late-link", "two hosts by Gloo, 50 ms of latency, 87 KB of gradients", "latency",
            f"{SMALL} --transport gloo", plant="delay:50", hosts=2),
)  # fmt: skip


# ---- asking ----


def ask(
    planted: Planted, place: Path, cluster: Cluster | None = None, repeats: int = 2, more: str = "", name: str = ""
) -> dict[str, Any]:
    """The experiment, as `hora lab scaling` wrote it; ``more`` are options that come after all others."""
    name = name or planted.name
    file = place / f"{name}.json"
    command = [
        sys.executable, "-m", "hora", "lab", "scaling", *planted.arguments.split(), "--repeats", str(repeats),
        "--out", str(place / name), "--runs", str(place / "runs"), "--json", str(file),
        *(["--set", f"data={digits(place)}"] if planted.arguments.startswith("mnist") else []), *more.split(),
    ]  # fmt: skip
    variables = clean_environment()
    if planted.plant:
        folder = place / f"plant-{name}"
        folder.mkdir(exist_ok=True)
        shutil.copy(PLANT, folder)
        (folder / "planted").write_text(planted.plant)
        variables["PYTHONPATH"] = f"{folder}{os.pathsep}{variables['PYTHONPATH']}"
        if planted.hosts > 1:  # whose environment is their own
            command = ["env", f"PYTHONPATH={folder}", *command]
    with computing(planted.hogs):
        if planted.hosts > 1:
            assert cluster is not None
            with contextlib.ExitStack() as stack:
                for host in cluster.hosts if planted.rate else ():
                    stack.enter_context(host.limited(planted.rate))
                done = cluster.login.run([*command, "-H", "h1:1,h2:1"], TIMEOUT_S)
        else:
            done = subprocess.run(
                command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=TIMEOUT_S,
            )  # fmt: skip
    print(done.stdout, flush=True)
    found: dict[str, Any] = json.loads(file.read_text()) if done.returncode == 0 else {"findings": [], "rows": []}
    found["findings"] = found["findings"] or [
        {"kind": f"nothing, exit code {done.returncode}", "share": 0, "rank": None, "title": "", "gain": 0}
    ]
    return found


@contextlib.contextmanager
def computing(count: int) -> Iterator[None]:
    """Other processes, each with a thread that never waits."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def digits(place: Path) -> Path:
    """A data set to load."""
    folder = place / "digits"
    if not folder.exists():
        subprocess.run(
            [sys.executable, "-m", "hora", "data", "make", "digits", "--to", str(folder), "--samples", "2000", "--test",
             "100"], check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S,
        )  # fmt: skip
    return folder


# ---- judging ----


def right(planted: Planted, found: Mapping[str, Any]) -> bool:
    first = found["findings"][0]
    return bool(
        first["kind"] == planted.kind
        and (planted.rank is None or first["rank"] == planted.rank)
        and planted.told in first["title"]
    )


def contradictions(found: Mapping[str, Any]) -> list[str]:
    """What in the findings speaks against what was measured, or against itself."""
    wrong = []
    row = max(found["rows"], key=lambda row: row["workers"], default={})
    parts = {part["part"]: part["share"] or 0.0 for part in row.get("waterfall") or ()}
    apart = found.get("options", {}).get("hosts") == "h1:1,h2:1"
    takes = {"bandwidth": ("moving",), "latency": ("moving",), "machine": ("contention",), "pauses": ("pauses",)}
    for finding in found["findings"]:
        change = finding.get("change", "")
        if "more hosts" in change and apart:
            wrong.append("advises more hosts, although each worker has one")
        if "compression" in change and parts.get("moving", 1.0) < WORTH:
            wrong.append("advises to send less, although nothing is moved")
        if "More workers help" in change and row.get("slower_than_one"):
            wrong.append("advises more workers, although two are slower than one")
        spread = parts.get("moving", 0.0) if finding["kind"] == "small batch" else 0.0  # over more images
        promised = finding["kind"] != "compute" and not finding.get(
            "tried"
        )  # what was tried may gain in other ways too
        if promised and finding["gain"] > finding["share"] + spread + 1e-6:
            wrong.append(f"promises {finding['gain']:.0%} of a thing that takes {finding['share']:.0%}")
        most = sum(parts.get(part, 0.0) for part in takes.get(finding["kind"], parts))
        if finding["kind"] in takes and finding["share"] > most + 0.005:
            wrong.append(f"{finding['kind']} takes {finding['share']:.0%}, and the waterfall says {most:.0%}")
    if parts and abs(sum(parts.values()) - 1) > 1e-3:
        wrong.append(f"the parts of a step are {sum(parts.values()):.1%} of it")
    if row.get("above_ideal") and found["findings"][0]["kind"] == "compute":
        wrong.append("more than ideal is taken for good")
    return wrong


def image_s(found: Mapping[str, Any]) -> float:
    """Seconds that the largest job takes for an image, with its part of the pauses."""
    row = max(found["rows"], key=lambda row: row["workers"])
    known = {part["part"]: part["ms"] for part in row["waterfall"] if part["ms"] is not None}
    total = sum(known.values())
    return float(total / (total - known.get("pauses", 0.0)) / row["images_per_s"])


def followed(
    planted: Planted, found: Mapping[str, Any], place: Path, cluster: Cluster | None
) -> tuple[str, float, float] | None:
    """What was done as the first finding advises, the gain it promised and the gain there was; None if it cannot be."""
    first = found["findings"][0]
    if planted.mended is None and not first.get("follow"):
        return None
    then, more, what = planted, "", "what was planted is mended"
    if planted.mended is not None:
        then = planted._replace(plant=planted.mended)
        what = f"`{planted.plant}` becomes `{planted.mended or 'nothing'}`"
    else:
        more, what = first["follow"], f"`{first['follow']}`"
    after = ask(then, place, cluster, 1, more, f"{planted.name}-followed")
    return what, first["gain"], 1 - image_s(after) / image_s(found) if after["rows"] else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.scaling.planted_runs", description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-follow", action="store_true", help="do not follow any advice")
    parser.add_argument("--keep", type=Path, help="folder for all that is measured")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    known = {planted.name for planted in PLANTED}
    if unknown := set(given.names) - known:
        parser.error(f"nothing is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    chosen = [planted for planted in PLANTED if not given.names or planted.name in given.names]
    lines, count, close, tried, against = [], 0, 0, 0, []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder, contextlib.ExitStack() as stack:
        place = given.keep.resolve() if given.keep else Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        cluster = None
        if any(planted.hosts > 1 for planted in chosen):
            (Path(folder) / "cluster").mkdir()
            cluster = Cluster(2, Path(folder) / "cluster", [place])
            stack.callback(cluster.close)
            Sshd(cluster)
        for planted in chosen:
            print(f"---- {planted.name}: {planted.what}", flush=True)
            found = ask(planted, place, cluster, given.repeats)
            first, good = found["findings"][0], right(planted, found)
            count += good
            against += [f"{planted.name}: {said}" for said in contradictions(found)]
            rank = "" if first["rank"] is None else f" (rank {first['rank']})"
            also = ", ".join(f"{other['kind']} {other['share']:.0%}" for other in found["findings"][1:])
            done = followed(planted, found, place, cluster) if good and not given.no_follow else None
            cells = ["", "", ""]
            if done is not None:
                what, predicted, measured = done
                near = abs(predicted - measured) <= CLOSE
                tried, close = tried + 1, close + near
                cells = [what, f"{predicted:.0%}", f"{measured:.0%}" if near else f"**{measured:.0%}**"]
            named = f"{first['kind']}{rank}, {first['share']:.0%}"
            whether = "yes" if good else "**no**"
            lines.append(f"| {planted.what} | {planted.kind} | {named} | {also} | {whether} | {' | '.join(cells)} |")
            print(f"{lines[-1]}\n{(time.monotonic() - began) / 60:.1f} minutes so far", flush=True)
    print("| planted | is | named, with its share | also | right | followed | predicted gain | measured |")
    print("| --- | --- | --- | --- | --- | --- | ---: | ---: |")
    print("\n".join(re.sub(r" +\|", " |", line) for line in lines))
    print(f"{count} of {len(chosen)} named right; {close} of {tried} gains within {100 * CLOSE:.0f} points")
    for said in against:
        print(f"contradiction: {said}")
    return 0 if count >= 0.95 * len(chosen) and close >= 0.8 * tried and not against else 1


if __name__ == "__main__":
    sys.exit(main())
