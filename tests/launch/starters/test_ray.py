"""Starting on a Ray cluster, with a stand-in for Ray that runs tasks in threads. The real one: ``tests/cluster``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launch.jobs import SOURCE, python, run_hora

STAND_IN = """
import concurrent.futures, types, sys

_pool = concurrent.futures.ThreadPoolExecutor()
_nodes = [{"Alive": True, "NodeID": "1", "NodeName": "r1", "Resources": {"CPU": 2.0}},
          {"Alive": True, "NodeID": "2", "NodeName": "r2", "Resources": {"CPU": 1.0}},
          {"Alive": False, "NodeID": "3", "NodeName": "r3", "Resources": {"CPU": 9.0}}]

is_initialized = lambda: True
nodes = lambda: _nodes

def remote(**options):
    assert options["num_cpus"] == 0
    def decorate(function):
        class Pinned:
            def options(self, scheduling_strategy): return self
            def remote(self, *arguments): return _pool.submit(function, *arguments)
        return Pinned()
    return decorate

def wait(refs, timeout):
    return [ref for ref in refs if ref.done()], [ref for ref in refs if not ref.done()]

get = lambda ref: ref.result()
cancel = lambda ref, force: ref.cancel()
"""
STRATEGIES = "class NodeAffinitySchedulingStrategy:\n    def __init__(self, node_id, soft): assert not soft\n"


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "ray" / "util").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(STAND_IN)
    (tmp_path / "ray" / "util" / "__init__.py").write_text("")
    (tmp_path / "ray" / "util" / "scheduling_strategies.py").write_text(STRATEGIES)
    return f"{tmp_path}:{SOURCE}"


def test_all_nodes_are_used(path: str) -> None:
    program = "import os; print(os.environ['HORA_RANK'], os.environ['HORA_HOSTNAME'])"
    done = run_hora("run", "--on", "ray", *python(program), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition(":")[2] for line in done.stdout.splitlines()) == ["0 r1", "1 r1", "2 r2"]


def test_failures_are_told_as_always(path: str) -> None:
    program = "import os, sys, time; os.environ['HORA_RANK'] == '2' and sys.exit(5); time.sleep(30)"
    done = run_hora("run", "--on", "ray", *python(program), PYTHONPATH=path)
    assert done.returncode == 5 and "rank 2 failed first" in done.stderr and "host r2" in done.stderr


def test_a_node_that_is_not_in_the_cluster(path: str) -> None:
    done = run_hora("run", "--on", "ray", "-H", "r9:1", "true", PYTHONPATH=path)
    assert done.returncode == 3 and "r9 is not among the nodes of the Ray cluster (r1, r2)" in done.stderr


def test_no_ray(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('no')")
    done = run_hora("run", "--on", "ray", "true", PYTHONPATH=f"{tmp_path}:{SOURCE}")
    assert done.returncode == 3 and "pip install ray" in done.stderr
