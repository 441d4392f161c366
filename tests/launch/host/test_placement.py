"""Cores and threads: whatever the machine looks like, shares are disjoint, even, and never more than there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hora.errors import UsageError
from hora.launch.host import placement
from hora.launch.host.placement import Cpu, Topology, cpus_for, environment, read_topology


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[int], Topology]:
    """CPUs that a launcher may use, and how they lie: nodes of cores of one or two hyperthreads, numbered as Linux does
    (all first threads, then all second ones), some of them not allowed."""
    nodes, cores, threads = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(1, 2))
    total = nodes * cores
    topology = {
        thread * total + core: Cpu(core // cores, core) for thread in range(threads) for core in range(total)
    }  # fmt: skip
    allowed = draw(st.lists(st.sampled_from(sorted(topology)), min_size=1, unique=True))
    return sorted(allowed), topology if draw(st.booleans()) else {}


@given(machines(), st.integers(1, 40))
def test_shares_are_disjoint_and_no_core_is_shared_while_cores_last(
    machine: tuple[list[int], Topology], local_size: int
) -> None:
    allowed, topology = machine
    shares = [cpus_for(rank, local_size, allowed, topology) for rank in range(local_size)]
    if local_size > len(allowed):
        assert shares == [()] * local_size
        return
    assert all(shares)
    given_out = [cpu for share in shares for cpu in share]
    assert len(given_out) == len(set(given_out)) and set(given_out) <= set(allowed)
    cores = [{topology.get(cpu, Cpu(0, cpu)) for cpu in share} for share in shares]
    if local_size <= len({topology.get(cpu, Cpu(0, cpu)) for cpu in allowed}):
        assert sum(map(len, cores)) == len(set().union(*cores))  # no two workers on one core


@given(machines(), st.integers(1, 40))
def test_nothing_lies_idle_on_even_nodes(machine: tuple[list[int], Topology], local_size: int) -> None:
    allowed, topology = machine
    nodes: dict[int, int] = {}
    for cpu in {topology.get(cpu, Cpu(0, cpu)) for cpu in allowed}:
        nodes[cpu.node] = nodes.get(cpu.node, 0) + 1
    if len(set(nodes.values())) == 1 and len(nodes) <= local_size <= sum(nodes.values()):
        shares = [cpus_for(rank, local_size, allowed, topology) for rank in range(local_size)]
        assert {cpu for share in shares for cpu in share} == set(allowed)
        if local_size % len(nodes) == 0:
            assert all(len({topology.get(cpu, Cpu(0, cpu)).node for cpu in share}) == 1 for share in shares)
            sizes = [len({topology.get(cpu, Cpu(0, cpu)) for cpu in share}) for share in shares]
            assert max(sizes) - min(sizes) <= 1


@given(machines(), st.integers(1, 40), st.booleans())
@example(([0, 1, 2, 3, 4, 5], {cpu: Cpu(0, cpu % 4) for cpu in range(8)}), 5, True)  # more workers than cores
def test_threads_never_exceed_cores(machine: tuple[list[int], Topology], local_size: int, bind: bool) -> None:
    allowed, topology = machine
    cores = {topology.get(cpu, Cpu(0, cpu)) for cpu in allowed}
    asked = [
        int(environment(r, local_size, allowed, threads=None, bind=bind, env={}, topology=topology)["OMP_NUM_THREADS"])
        for r in range(local_size)
    ]
    assert min(asked) >= 1
    assert sum(asked) <= max(len(cores), local_size)


@pytest.mark.parametrize(
    ("local_size", "expected"),
    [
        (1, ["0-27"]),
        (2, ["0-13", "14-27"]),
        (4, ["0-6", "7-13", "14-20", "21-27"]),
        (3, ["0-6", "7-13", "14-27"]),  # of one node each, rather than one across both
    ],
)
def test_two_sockets_of_fourteen_cores(local_size: int, expected: list[str]) -> None:
    topology = {cpu: Cpu(cpu // 14, cpu) for cpu in range(28)}
    shares = [placement.ranges(cpus_for(rank, local_size, range(28), topology)) for rank in range(local_size)]
    assert shares == expected


def test_hyperthreads_stay_with_their_core_until_cores_run_out() -> None:
    topology = {cpu: Cpu(0, cpu % 4) for cpu in range(8)}
    assert [cpus_for(rank, 4, range(8), topology) for rank in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    six = [cpus_for(rank, 6, range(8), topology) for rank in range(6)]
    assert six == [(0,), (4,), (1, 5), (2,), (6,), (3, 7)]


def test_what_the_user_set_stays_unless_the_flag_says_otherwise() -> None:
    env = {"OMP_NUM_THREADS": "3,2", "MKL_NUM_THREADS": "1"}
    default = environment(0, 2, range(8), threads=None, bind=True, env=env, topology={})
    assert "OMP_NUM_THREADS" not in default and "MKL_NUM_THREADS" not in default
    assert default["OPENBLAS_NUM_THREADS"] == "3" and default["TF_NUM_INTEROP_THREADS"] == "2"
    asked = environment(0, 2, range(8), threads=1, bind=True, env=env, topology={})
    assert set(asked.values()) == {"1"} and len(asked) == 6


def test_no_thread_is_refused() -> None:
    with pytest.raises(UsageError, match="--threads-per-worker 0"):
        environment(0, 1, range(4), threads=0, bind=True, env={})
    with pytest.raises(UsageError, match="no GPU"):
        placement.gpu_for(0, 0)


def test_the_kernels_files_are_read(tmp_path: Path) -> None:
    for cpu in range(4):
        folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    for node in range(2):
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
        (tmp_path / "node" / f"node{node}" / "cpulist").write_text(f"{node},{node + 2}\n")
    (tmp_path / "node" / "node2").mkdir()
    (tmp_path / "node" / "node2" / "cpulist").write_text("\n")  # a node of memory alone
    assert read_topology(tmp_path) == {0: Cpu(0, 0), 1: Cpu(1, 1), 2: Cpu(0, 0), 3: Cpu(1, 1)}


def test_this_machine_is_understood() -> None:
    allowed = os.sched_getaffinity(0)
    assert set(read_topology()) >= allowed or not read_topology()
    assert set(cpus_for(0, 1, sorted(allowed))) == allowed
