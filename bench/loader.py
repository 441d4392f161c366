"""How near the data loader comes to the limit: the same pictures made in as many bare processes, and thrown away.

    python bench/loader.py FOLDER [--processes 2] [--batch 64] [--size 224] [--seconds 4] [--rounds 3] [--json FILE]

FOLDER is anything that ``hora train imagenet`` trains on. The two take turns, so that a busy machine slows both down;
the figures are medians over the rounds. The loader's first batch, which is when its processes start, is not counted in
images a second. Processor time is of all processes and everything, and tells on a busy machine too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from hora.data.loader import BatchPlan, Loader
from hora.data.sampler import Sampler
from hora.data.source import Source, open_source
from hora.workloads.imagenet.data import TrainingBatches


def plans(samples: int, batch: int, epoch: int) -> list[BatchPlan]:
    """The batches of an epoch, all whole."""
    sampler = Sampler(samples, seed=42)
    sampler.set_epoch(epoch)
    order = sampler.order()
    return [BatchPlan(order[start : start + batch], epoch) for start in range(0, samples - batch + 1, batch)]


class Figures(NamedTuple):
    images_per_s: float
    cpu_ms_per_image: float


def cpu_s() -> float:
    """Processor time of this process and of those it has seen end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def bare(dataset: TrainingBatches, work: Callable[[int], list[BatchPlan]], processes: int, seconds: float) -> Figures:
    """Of processes that share nothing and hand nothing over."""
    before = cpu_s()
    context = multiprocessing.get_context("fork")
    made: Synchronized[int] = context.Value("q", 0)

    def make(number: int) -> None:
        torch.set_num_threads(1)
        count = epoch = 0
        end = time.perf_counter() + seconds
        while True:
            for plan in work(epoch)[number::processes]:
                dataset[plan]
                count += len(plan.indices)
                if time.perf_counter() > end:
                    with made.get_lock():
                        made.value += count
                    return
            epoch += 1

    crew = [context.Process(target=make, args=(number,)) for number in range(processes)]
    began = time.perf_counter()
    for process in crew:
        process.start()
    for process in crew:
        process.join()
    images_per_s = made.value / (time.perf_counter() - began)
    return Figures(images_per_s, 1e3 * (cpu_s() - before) / made.value)


def loaded(dataset: TrainingBatches, work: Callable[[int], list[BatchPlan]], processes: int, seconds: float) -> Figures:
    """Of what arrives in this process from a loader."""
    before, prefetch = cpu_s(), 2
    with Loader(dataset, work, processes=processes, prefetch=prefetch) as loader:
        images_per_s, batches, batch = arriving(loader, seconds)
    made = batches + prefetch * processes  # those that were made in vain took their time as well
    return Figures(images_per_s, 1e3 * (cpu_s() - before) / (made * batch))


def arriving(loader: Loader[tuple[torch.Tensor, torch.Tensor]], seconds: float) -> tuple[float, int, int]:
    """Images a second, batches, and images in each."""
    began, count, epoch = 0.0, 0, 0
    while True:
        for images, _ in loader.epoch(epoch):
            now = time.perf_counter()
            count += 1
            began = began or now
            if now - began > seconds:
                return (count - 1) * len(images) / (now - began), count, len(images)
        epoch += 1


def middle(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="The loader's images a second against the decode limit.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    source: Source = open_source(options.folder, options.split)
    dataset = TrainingBatches(source, options.size, seed=42)

    def work(epoch: int) -> list[BatchPlan]:
        return plans(len(source), options.batch, epoch)

    if not work(0):
        parser.error(f"{options.folder} has {len(source)} pictures, fewer than a batch of {options.batch}")
    some = [len(source.read(int(index)).data) for index in np.linspace(0, len(source) - 1, 50).astype(int)]
    print(f"{len(source)} pictures of {statistics.mean(some) / 1e3:.0f} kB, to {options.size} x {options.size}")
    limits, figures = [], []
    for number in range(options.rounds):
        limits.append(bare(dataset, work, options.processes, options.seconds))
        figures.append(loaded(dataset, work, options.processes, options.seconds))
        texts = [f"{one.images_per_s:.0f} images/s, {one.cpu_ms_per_image:.2f} ms" for one in (limits[-1], figures[-1])]
        print(f"round {number + 1}: bare {texts[0]}; loader {texts[1]}")
    result = {
        "processes": options.processes,
        "batch": options.batch,
        **{f"bare_{name}": middle([getattr(one, name) for one in limits]) for name in Figures._fields},
        **{f"loader_{name}": middle([getattr(one, name) for one in figures]) for name in Figures._fields},
        "ratio": middle([one.images_per_s / limit.images_per_s for one, limit in zip(figures, limits, strict=True)]),
    }
    print(msgspec.json.encode(result).decode())
    if options.json:
        options.json.write_bytes(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
