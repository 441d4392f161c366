"""Each bottleneck is named from the evidence for it, with numbers that follow from it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from hora.lab.scaling.evidence import Evidence, Pauses, RunConditions
from hora.lab.scaling.verdict import faster, findings
from hora.lab.scaling.waterfall import PARTS, Part
from hora.lab.throughput.estimate import Estimate
from hora.timeline.verdict import TimelineFinding

CONDITIONS = RunConditions(workers=2, workers_per_host=2, batch=32, threads=1, cores=2, loads_ahead=True)
CROWDED = RunConditions(workers=4, workers_per_host=4, batch=32, threads=2, cores=4)
TWO_HOSTS = RunConditions(workers=2, workers_per_host=1, hosts=2, batch=32, threads=2, cores=2)
STEP_S = 0.2

KINDS = {
    "compute",
    "input",
    "bandwidth",
    "latency",
    "imbalance",
    "oversubscription",
    "machine",
    "small batch",
    "pauses",
    "above ideal",
}


def share(value: float) -> Estimate:
    return Estimate(value, 0.9 * value, 1.1 * value)


def seen(conditions: RunConditions = CONDITIONS, **more: Any) -> Evidence:
    """Evidence whose parts of the step are given as shares; the rest is computing."""
    shares = {name.replace("_", " "): more.pop(name) for name in list(more) if name.replace("_", " ") in PARTS}
    shares = {"computing": 1 - sum(shares.values()), **shares}
    facts: dict[str, Any] = {
        "step_s": STEP_S,
        "alone_s": 0.1,
        "typical_s": 0.12,
        "cpu_share": 0.5,
        "efficiency": share(0.5),
        "parts": tuple(Part(name, PARTS[name], STEP_S * value, value) for name, value in shares.items()),
        "contention": share(shares.get("contention", 0.0)),
        "waiting": share(shares.get("waiting", 0.0)),
        "moving": share(shares.get("moving", 0.0)),
        "data_s": STEP_S * shares.get("data", 0.0),
        "meeting_s": 1e-5,
        "batches": 3.0,
        "gradient_bytes": 13.5e6,
    }
    if "communication" in shares:  # as with Keras
        facts |= {"waiting": Estimate(), "moving": Estimate(), "meeting_s": math.nan}
    return Evidence(conditions=conditions, **{**facts, **more})


def from_timeline(kind: str, part: float, rank: int | None = None) -> TimelineFinding:
    return TimelineFinding(kind=kind, title="", share=part, gain=part / 2, what=f"seen: {kind}", change="", rank=rank)


PAUSES = Pauses(validation_s=2.0, save_s=4.0, save_every=1.0, steps_per_epoch=100)  # 20 and 40 ms a step
CASES = {
    "computing": (seen(moving=0.04), "compute", None),
    "data": (seen(data=0.5, moving=0.2), "input", None),
    "bytes": (seen(moving=0.5), "bandwidth", None),
    "exchanges": (seen(moving=0.5, meeting_s=0.05), "latency", None),
    "bytes, timeline only": (seen(communication=0.5), "bandwidth", None),
    "little, timeline only": (seen(communication=0.5, gradient_bytes=5e4), "latency", None),
    "slow by itself": (seen(waiting=0.4, slow_rank=1, slow_rank_share=0.4), "imbalance", 1),
    "slow in the job": (seen(waiting=0.5, timeline=(from_timeline("straggler", 0.4, 3),)), "imbalance", 3),
    "in turns": (seen(waiting=0.4), "imbalance", None),
    "in turns, timeline only": (
        seen(communication=0.5, timeline=(from_timeline("imbalance", 0.4),)),
        "imbalance",
        None,
    ),
    "slow data of one": (seen(data=0.5, slow_rank=0, slow_rank_share=0.48), "imbalance", 0),
    "threads": (seen(CROWDED, contention=0.3, remedy_threads=1, remedy=share(0.2)), "oversubscription", None),
    "threads waiting": (seen(CROWDED, contention=0.1, waiting=0.4), "oversubscription", None),
    "memory": (seen(contention=0.3), "machine", None),
    "small batches": (seen(small_batch=0.3), "small batch", None),
    "checkpoints": (
        msgspec.structs.replace(
            seen(), parts=(Part("computing", "", 0.14, 0.7), Part("pauses", "", 0.06, 0.3)), pauses=PAUSES
        ),
        "pauses",
        None,
    ),
    "more than ideal": (seen(efficiency=share(1.42)), "above ideal", None),
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
    assert {kind for _, kind, _ in CASES.values()} == KINDS


def test_waiting_is_not_advised_to_be_sent_less() -> None:
    """Two quiet cores, MNIST: 9 % of a step is waiting, and nothing of it moving."""
    found = findings(seen(waiting=0.09))
    assert [finding.kind for finding in found] == ["compute", "imbalance"]
    said = " ".join(finding.change for finding in found)
    assert "compression" not in said and "Sending less would gain nothing" in said


def test_shares_are_those_of_the_waterfall() -> None:
    evidence = seen(contention=0.1, waiting=0.15, moving=0.4, data=0.1)
    by_kind = {finding.kind: finding.share for finding in findings(evidence)}
    assert by_kind["bandwidth"] + evidence.latency == pytest.approx(0.4)
    assert by_kind["imbalance"] == pytest.approx(0.15)
    assert by_kind["machine"] == pytest.approx(0.1) and by_kind["input"] == pytest.approx(0.1)


def test_latency_and_bytes_share_what_moving_takes() -> None:
    """Four exchanges of 10 ms, with that of the meeting, in a step of 200: 20 % of it; moving takes 50."""
    by_kind = {finding.kind: finding.share for finding in findings(seen(moving=0.5, meeting_s=0.01))}
    assert by_kind["latency"] == pytest.approx(0.2) and by_kind["bandwidth"] == pytest.approx(0.3)


def test_a_rank_that_is_slower_by_chance_is_not_blamed() -> None:
    assert findings(seen(slow_rank=1, slow_rank_share=0.07))[0].kind == "compute"
    known = seen(slow_rank=1, slow_rank_share=0.3, arrivals_known=True)
    assert findings(known)[0].kind == "compute", "in the job it is not late"
    all_of_it = seen(waiting=0.32, slow_rank=1, slow_rank_share=0.3, arrivals_known=True)
    assert findings(all_of_it)[0].rank == 1, "unless it is as much as all wait in step"
    both = seen(waiting=0.07, slow_rank=1, slow_rank_share=0.07, timeline=(from_timeline("straggler", 0.06, 1),))
    assert findings(both)[1].rank == 1, "unless the timeline says so too"


def test_company_that_may_be_chance_is_not_named() -> None:
    unsure = seen(contention=0.2)
    assert findings(unsure)[0].kind == "machine"
    unsure = msgspec.structs.replace(unsure, contention=Estimate(0.2, 0.0, 0.5))
    assert findings(unsure)[0].kind == "compute"


def test_changes_have_numbers() -> None:
    """Half of the time is moving: half the bytes save a quarter; twice the batch takes 3/4 of the time an image."""
    found = findings(seen(TWO_HOSTS, moving=0.5, meeting_s=0.0))[0]
    assert found.gain == pytest.approx(0.25) and found.follow == "--set compression=bf16"
    assert "compression=bf16: 25 % less" in found.change and "33 % more images/s" in found.change
    gloo = msgspec.structs.replace(CONDITIONS, transport="gloo")
    found = findings(seen(gloo, moving=0.5, meeting_s=0.0))[0]
    assert found.follow == "--transport auto" and "compression" not in found.change


def test_half_the_bytes_save_half_the_way_not_half_of_what_shows() -> None:
    """13.5 MB at 90 MB/s are on their way 150 ms of a step of 200, and 100 of them show: half the bytes save 75."""
    found = findings(seen(TWO_HOSTS, moving=0.5, meeting_s=0.0, bytes_per_s=90e6))[0]
    assert found.gain == pytest.approx(0.375)
    found = findings(seen(TWO_HOSTS, moving=0.5, meeting_s=0.0, bytes_per_s=45e6))[0]
    assert found.gain == pytest.approx(0.5), "and no more than shows"


def test_a_link_is_told_with_its_rate_and_what_a_faster_one_gives() -> None:
    """13.5 MB over a link of 120 Mbit/s take 0.9 s of a step of 1 s; ten times as fast they take 0.09."""
    parts = (Part("computing", "", 0.1, 0.1), Part("moving", "", 0.9, 0.9))
    slow = msgspec.structs.replace(
        seen(TWO_HOSTS, moving=0.9, meeting_s=0.0, speed_up=Estimate(0.2, 0.19, 0.21), step_s=1.0), parts=parts
    )
    found = findings(slow)[0]
    assert found.kind == "bandwidth" and found.what.startswith("2 workers are slower than one: together they have 0.20")
    assert "The link between the hosts: 120 Mbit/s, 900 ms of a step of 1.00 s" in found.what
    assert "A link 10 times as fast (1.2 Gbit/s) would save 81 % of a step" in found.change
    assert slow.link is not None
    assert faster(slow, slow.link)[1] == (10, pytest.approx(0.81), pytest.approx(0.2 / 0.19))


def test_more_than_ideal_is_never_praised() -> None:
    found = findings(seen(TWO_HOSTS, efficiency=share(1.88)))
    said = " ".join(f"{each.title} {each.what} {each.change}" for each in found)
    assert found[0].kind == "above ideal" and "188 %" in found[0].what
    assert "More workers help" not in said and "more hosts" not in said


@pytest.mark.parametrize("case", ["contention", "waiting", "moving", "data"])
def test_more_hosts_are_not_advised_where_each_worker_has_one(case: str) -> None:
    for finding in findings(seen(TWO_HOSTS, **{case: 0.4})):
        assert "more hosts" not in finding.change, finding


def test_input_that_computes_is_told_from_input_that_waits() -> None:
    waits = findings(seen(data=0.6, cpu_share=0.4))[0]
    assert "waits for storage" in waits.change and "loaders=2" in waits.change and waits.gain == pytest.approx(0.6)
    decodes = findings(seen(data=0.6, cpu_share=0.98))[0]
    assert "decoding" in decodes.change and decodes.gain < waits.gain
    crowded = findings(seen(msgspec.structs.replace(CONDITIONS, others=0.6), data=0.6, cpu_share=0.38))[0]
    assert "decoding" in crowded.change, "all that others leave of the cores is used"
    without = findings(seen(msgspec.structs.replace(CONDITIONS, loads_ahead=False), data=0.6, cpu_share=0.4))[0]
    assert "loaders" not in without.change, "the workload has no use for them"


def test_threads_that_were_measured_are_recommended_with_what_they_gave() -> None:
    [found] = findings(seen(CROWDED, contention=0.3, remedy_threads=1, remedy=share(0.2)))
    assert found.gain == pytest.approx(0.2) and "--threads 1): 20 % less time a step, measured" in found.change
    more_workers = RunConditions(workers=8, workers_per_host=8, batch=32, threads=1, cores=4)
    [found] = findings(seen(more_workers, contention=0.5))
    assert "no more than 4 workers" in found.change


def test_a_machine_that_others_use_is_said_to_be() -> None:
    [found] = findings(seen(msgspec.structs.replace(CONDITIONS, others=0.6), contention=0.3))
    assert found.kind == "machine" and found.title == "other processes use this machine" and "60 %" in found.what
    assert "more hosts" not in found.change


def test_checkpoints_are_told_from_validation() -> None:
    found = findings(CASES["checkpoints"][0])[0]
    assert found.gain == pytest.approx(0.1) and found.follow == "--set save_every=2"
    assert "10 % and 20 % of the time" in found.what
