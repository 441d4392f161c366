"""Each bottleneck is named from the evidence for it, with numbers that follow from it."""

from __future__ import annotations

from typing import Any

import pytest

from hora.lab.scaling.evidence import Evidence, Place
from hora.lab.scaling.verdict import KINDS, findings
from hora.lab.throughput.estimate import Estimate
from hora.lab.timeline.verdict import Finding

PLACE = Place(workers=2, workers_per_host=2, batch=32, threads=1, cores=2)
CROWDED = Place(workers=4, workers_per_host=4, batch=32, threads=2, cores=4)


def share(value: float) -> Estimate:
    return Estimate(value, 0.9 * value, 1.1 * value)


def seen(place: Place = PLACE, **more: Any) -> Evidence:
    facts = {"step_s": 0.2, "alone_s": 0.1, "typical_s": 0.12, "cpu_share": 0.5, "efficiency": share(0.5)}
    return Evidence(place=place, **{**facts, **more})


def from_timeline(kind: str, part: float, rank: int | None = None) -> Finding:
    return Finding(kind=kind, title="", share=part, gain=part / 2, what=f"seen: {kind}", change="", rank=rank)


CASES = {
    "computing": (seen(communication=share(0.04)), "compute", None),
    "data": (seen(input=0.5, data_s=0.1, communication=share(0.2)), "input", None),
    "bytes": (seen(communication=share(0.5), timeline=(from_timeline("bandwidth", 0.4),)), "bandwidth", None),
    "copies": (seen(communication=share(0.5), timeline=(from_timeline("copies", 0.4),)), "bandwidth", None),
    "tiny": (seen(communication=share(0.5), timeline=(from_timeline("tiny operations", 0.3),)), "latency", None),
    "hidden bytes": (seen(communication=share(0.3), gradient_bytes=5e7), "bandwidth", None),
    "hidden little": (seen(communication=share(0.3), gradient_bytes=5e4), "latency", None),
    "slow by itself": (seen(slow_rank=1, slow_rank_share=0.4), "imbalance", 1),
    "slow in the job": (seen(communication=share(0.5), timeline=(from_timeline("straggler", 0.4, 3),)), "imbalance", 3),
    "in turns": (seen(communication=share(0.5), timeline=(from_timeline("imbalance", 0.4),)), "imbalance", None),
    "slow data of one": (seen(input=0.5, data_s=0.1, slow_rank=0, slow_rank_share=0.48), "imbalance", 0),
    "threads": (seen(CROWDED, machine=share(0.3), remedy_threads=1, remedy=share(0.2)), "oversubscription", None),
    "threads waiting": (
        seen(CROWDED, machine=share(0.1), communication=share(0.4), timeline=(from_timeline("imbalance", 0.4),)),
        "oversubscription",
        None,
    ),
    "memory": (seen(machine=share(0.3)), "machine", None),
    "small batches": (seen(small_batch=share(0.3)), "small batch", None),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_named(case: str) -> None:
    evidence, kind, rank = CASES[case]
    first = findings(evidence)[0]
    assert (first.kind, first.rank) == (kind, rank)
    assert 0 <= first.gain <= 1 and 0 <= first.share <= 1
    assert first.what and first.change and first.kind in KINDS
    assert "nan" not in first.what + first.change


def test_every_kind_is_tried() -> None:
    assert {kind for _, kind, _ in CASES.values()} == set(KINDS)


def test_shares_do_not_exceed_what_was_lost() -> None:
    """What a timeline sees is divided, not added to what was measured."""
    timeline = (from_timeline("bandwidth", 0.6), from_timeline("latency", 0.3), from_timeline("imbalance", 0.1))
    found = findings(seen(communication=share(0.4), timeline=timeline))
    assert sum(finding.share for finding in found) == pytest.approx(0.4)
    assert [finding.kind for finding in found] == ["bandwidth", "latency", "imbalance"]
    assert found[0].share == pytest.approx(0.3 * 0.6 / 0.9)


def test_a_rank_that_is_slower_by_chance_is_not_blamed() -> None:
    assert findings(seen(slow_rank=1, slow_rank_share=0.07))[0].kind == "compute"
    known = seen(slow_rank=1, slow_rank_share=0.3, arrivals_known=True)
    assert findings(known)[0].kind == "compute", "in the job it is not late"
    both = seen(slow_rank=1, slow_rank_share=0.07, timeline=(from_timeline("straggler", 0.06, 1),))
    assert findings(both)[1].rank == 1, "unless the timeline says so too"


def test_what_is_worth_a_change_but_no_bottleneck_comes_after_computing() -> None:
    kinds = [finding.kind for finding in findings(seen(communication=share(0.08), gradient_bytes=1e8))]
    assert kinds == ["compute", "bandwidth"]


def test_changes_have_numbers() -> None:
    """Half of the time is moving: half the bytes save a quarter; twice the batch takes 3/4 of the time an image."""
    [found] = findings(seen(communication=share(0.5), timeline=(from_timeline("bandwidth", 0.5),)))
    assert found.gain == pytest.approx(0.25)
    assert "compression=bf16: up to 25 % less" in found.change and "33 % more images/s" in found.change
    gloo = Place(workers=2, workers_per_host=2, batch=32, threads=1, cores=2, transport="gloo", compression="bf16")
    [found] = findings(seen(gloo, communication=share(0.5), timeline=(from_timeline("bandwidth", 0.5),)))
    assert "--transport auto" in found.change and "compression" not in found.change


def test_input_that_computes_is_told_from_input_that_waits() -> None:
    waits = findings(seen(input=0.6, data_s=0.12, cpu_share=0.4))[0]
    assert "waits for storage" in waits.change and "loaders=2" in waits.change and waits.gain == pytest.approx(0.6)
    decodes = findings(seen(input=0.6, data_s=0.12, cpu_share=0.98))[0]
    assert "decoding" in decodes.change and decodes.gain < waits.gain


def test_threads_that_were_measured_are_recommended_with_what_they_gave() -> None:
    [found] = findings(seen(CROWDED, machine=share(0.3), remedy_threads=1, remedy=share(0.2)))
    assert found.gain == pytest.approx(0.2) and "--threads 1): 20 % less time a step, measured" in found.change
    more_workers = Place(workers=8, workers_per_host=8, batch=32, threads=1, cores=4)
    [found] = findings(seen(more_workers, machine=share(0.5)))
    assert "no more than 4 workers" in found.change


def test_a_machine_that_others_use_is_said_to_be() -> None:
    shared = Place(workers=2, workers_per_host=2, batch=32, threads=1, cores=2, others=0.6)
    [found] = findings(seen(shared, machine=share(0.3)))
    assert found.kind == "machine" and found.title == "other processes use this machine" and "60 %" in found.what
