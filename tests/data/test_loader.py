"""The loader: the same batches from any number of processes, kept from epoch to epoch, and nothing left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.launch.jobs import children_of, clean_environment, run_hora, wait_until

from hora.data.loader import BatchPlan, Loader, empty
from hora.data.sampler import Sampler
from hora.data.source import Sample
from hora.data.tar import TarShards, write_tar
from hora.errors import BadData, EnvironmentUnfit, UsageError

HERE = Path(__file__).resolve().parents[2]


class Numbers:
    """Batches that say everything: the samples, the plan's numbers, random numbers of the plan, who made it."""

    def __getitem__(self, plan: BatchPlan) -> dict[str, torch.Tensor]:
        bad = np.flatnonzero(plan.indices < 0)
        if len(bad):
            raise BadData(f"sample {plan.indices[bad[0]]} of epoch {plan.epoch} is damaged")
        out = empty((len(plan.indices), 1000))
        out[:] = torch.from_numpy(plan.indices)[:, None] % 251
        return {
            "bytes": out,
            "shared": torch.tensor(out.is_shared()),
            "where": torch.tensor([plan.epoch, plan.worker, plan.step]),
            "random": torch.from_numpy(np.random.default_rng([1, plan.epoch, plan.worker, plan.step]).random(3)),
            "maker": torch.tensor(os.getpid()),
        }


def plans(epoch: int) -> list[BatchPlan]:
    """Seven batches, the last one smaller."""
    sampler = Sampler(50, seed=5)
    sampler.set_epoch(epoch)
    order = sampler.order()
    return [BatchPlan(order[start : start + 8], epoch, step % 2, step) for step, start in enumerate(range(0, 50, 8))]


def contents(batches: Iterable[dict[str, torch.Tensor]]) -> list[object]:
    return [{name: batch[name].tolist() for name in ("bytes", "where", "random")} for batch in batches]


def expected(epoch: int) -> list[object]:
    return contents(map(Numbers().__getitem__, plans(epoch)))


def shm() -> set[str]:
    """Files that loaders have made and left behind. Their names have the process's number; others' are at work."""
    made = {name: int(name.split("_")[1]) for name in os.listdir("/dev/shm") if name.startswith("torch_")}
    return {name for name, pid in made.items() if pid == os.getpid() or not os.path.exists(f"/proc/{pid}")}


def loaders() -> set[int]:
    return set(children_of(os.getpid()))


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_batches_do_not_depend_on_the_processes(processes: int) -> None:
    before, left = loaders(), shm()
    torch.manual_seed(7)
    with Loader(Numbers(), plans, processes=processes, epochs=3) as loader:
        makers = []
        for epoch in range(3):
            batches = list(loader.epoch(epoch))
            assert contents(batches) == expected(epoch)
            assert all(bool(batch["shared"]) == (processes > 0) for batch in batches)
            makers.append({int(batch["maker"]) for batch in batches})
        assert len(set().union(*makers)) == max(1, processes), "processes were started again"
        assert (os.getpid() in makers[0]) == (processes == 0)
    assert torch.equal(torch.rand(4), torch.rand(4, generator=torch.Generator().manual_seed(7)))
    assert loaders() == before and shm() == left


def test_the_next_epoch_is_made_ahead() -> None:
    asked: list[int] = []

    def told(epoch: int) -> list[BatchPlan]:
        asked.append(epoch)
        return plans(epoch)

    with Loader(Numbers(), told, processes=1, prefetch=2, epochs=2) as loader:
        batches = loader.epoch(0)
        first = list(islice(batches, 7))  # all there are; whoever counts does not ask for an eighth
        assert asked == [0, 1]
        makers = {int(batch["maker"]) for batch in first}
        second = list(islice(loader.epoch(1), 7))
        assert contents(second) == expected(1) and asked == [0, 1], "it was begun again"
        assert {int(batch["maker"]) for batch in second} == makers
        assert contents(loader.epoch(0)) == expected(0), "any epoch may be asked for"


def test_an_epoch_that_is_left_is_forgotten() -> None:
    with Loader(Numbers(), plans, processes=2) as loader:
        for epoch in (0, 1, 1, 4):
            assert contents(islice(loader.epoch(epoch), 3)) == expected(epoch)[:3]
        assert contents(loader.epoch(5)) == expected(5)


def test_an_epoch_may_have_no_batch() -> None:
    with Loader(Numbers(), lambda epoch: plans(epoch) if epoch % 2 else [], processes=1) as loader:
        assert [len(list(loader.epoch(epoch))) for epoch in (0, 1, 2, 3)] == [0, 7, 0, 7]


@pytest.mark.parametrize("processes", [0, 2])
def test_bad_data_arrives_as_it_was_raised(processes: int) -> None:
    def damaged(epoch: int) -> list[BatchPlan]:
        made = plans(epoch)
        if epoch == 0:
            made[3] = made[3]._replace(indices=np.array([4, -5]))
        return made

    with Loader(Numbers(), damaged, processes=processes) as loader:
        batches = loader.epoch(0)
        assert len(list(islice(batches, 3))) == 3
        with pytest.raises(BadData) as refused:
            next(batches)
        assert type(refused.value) is BadData and str(refused.value) == "sample -5 of epoch 0 is damaged"
        assert contents(loader.epoch(1)) == expected(1), "it can go on"


class Broken:
    def __getitem__(self, plan: BatchPlan) -> int:
        return {}[plan.step]  # type: ignore[no-any-return, index]


def test_a_bug_arrives_with_its_traceback() -> None:
    with Loader(Broken(), plans, processes=1) as loader, pytest.raises(KeyError, match=r"in __getitem__"):
        list(loader.epoch(0))


class Killed:
    def __getitem__(self, plan: BatchPlan) -> int:
        if plan.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return plan.step


def test_a_process_that_is_killed_is_missed() -> None:
    with Loader(Killed(), plans, processes=1) as loader, pytest.raises(EnvironmentUnfit, match="a loader process died"):
        list(loader.epoch(0))


@pytest.mark.parametrize("wrong", [{"processes": -1}, {"prefetch": 0, "processes": 1}])
def test_wrong_arguments(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="not possible"):
        Loader(Numbers(), plans, **wrong)


def test_a_closed_loader_says_so() -> None:
    loader = Loader(Numbers(), plans, processes=1)
    loader.close()
    with pytest.raises(UsageError, match="closed"):
        next(iter(loader.epoch(0)))


class Stored:
    """A real source, read by every process through descriptors that were opened before the fork."""

    def __init__(self, source: TarShards) -> None:
        self._source = source

    def __getitem__(self, plan: BatchPlan) -> list[Sample]:
        return [self._source.read(index) for index in plan.indices.tolist()]


def test_sources_are_read_from_all_processes(tmp_path: Path) -> None:
    samples = [Sample(bytes([number]) * (number + 1), number) for number in range(50)]
    for shard in range(2):
        write_tar(tmp_path / f"{shard}.tar", samples[25 * shard : 25 * shard + 25])
    source = TarShards([tmp_path / "0.tar", tmp_path / "1.tar"])
    source.read(0), source.read(49)
    with Loader(Stored(source), plans, processes=3, epochs=2) as loader:
        for epoch in range(2):
            found = [sample for batch in loader.epoch(epoch) for sample in batch]
            assert found == [samples[index] for plan in plans(epoch) for index in plan.indices]


def test_in_a_thread_that_ends_the_processes_do_not() -> None:
    made: list[Loader[dict[str, torch.Tensor]]] = []

    def begin() -> None:
        made.append(Loader(Numbers(), plans, processes=1))
        next(made[0].epoch(0))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join(30)
    with made[0] as loader:
        assert contents(loader.epoch(1)) == expected(1)


TRAINER = """
import os, signal, sys
from tests.data.test_loader import Numbers, children_of, plans
from hora.data.loader import Loader
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM"))
loader = Loader(Numbers(), plans, processes=2)
batches = loader.epoch(0)
next(batches)
print(*children_of(os.getpid()), flush=True)
sys.stdin.readline()
count = 1 + len(list(batches)) + len(list(loader.epoch(1)))
print(count, *told, flush=True)
sys.stdin.readline()
"""


def trainer() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TRAINER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env=clean_environment(),
        start_new_session=True,
    )


def test_signals_are_the_trainers_and_its_death_is_everybodys() -> None:
    """A preempted job's SIGTERM goes to all its processes: the trainer goes on, to save; SIGKILL ends all."""
    with trainer() as killed, trainer() as interrupted:
        children = {process: [int(pid) for pid in line(process).split()] for process in (killed, interrupted)}
        try:
            for process, pids in children.items():
                assert len(pids) == 2
                os.killpg(process.pid, signal.SIGTERM)
            for process in children:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert line(process) == "14 SIGTERM\n"
            os.killpg(interrupted.pid, signal.SIGINT)  # as Ctrl-C does
            assert interrupted.wait(60) == -signal.SIGINT
            assert interrupted.stderr is not None
            said = interrupted.stderr.read()
            assert said.count("Traceback") == 1 and said.endswith("KeyboardInterrupt\n"), said
        finally:
            killed.kill()
            interrupted.kill()
        wait_until(
            lambda: not any(alive(pid) for pids in children.values() for pid in pids), 10.0, "the loader processes' end"
        )


EARLY = """
import os, signal, torch
from tests.data.test_loader import Numbers, contents, expected, plans
from hora.data.loader import Loader
trainer, seed = os.getpid(), torch.manual_seed
def interrupted(number):  # which a loader process calls before anything of ours
    if os.getpid() != trainer:
        os.kill(os.getpid(), signal.SIGTERM)
    return seed(number)
torch.manual_seed = interrupted
with Loader(Numbers(), plans, processes=2) as loader:
    assert contents(loader.epoch(0)) == expected(0)
os.kill(trainer, signal.SIGTERM)  # nothing is held any more
"""


def test_a_signal_to_a_process_that_has_only_begun() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, cwd=HERE, env=clean_environment(), timeout=60
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


WORKER = """
import os
import torch
import hora.torch as hvd
from tests.data.test_loader import Numbers, contents, expected, plans
from hora.data.loader import Loader
hvd.init()
with Loader(Numbers(), plans, processes=2, epochs=2) as loader:
    for epoch in range(2):
        found = []
        for batch in loader.epoch(epoch):
            found.append(batch)
            total = hvd.allreduce(batch["random"], op=hvd.Sum, name="random")
            assert torch.equal(total, batch["random"] * hvd.size())
        assert contents(found) == expected(epoch)
print("rank", hvd.rank(), "fine")
"""


def test_under_hora_run() -> None:
    """In workers that have the preloaded allocator, threads of the engine and descriptors of the job."""
    left = shm()
    done = run_hora("run", "-np", "2", sys.executable, "-c", WORKER, timeout_s=110, cwd=HERE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"rank {rank} fine" in done.stdout for rank in range(2)), done.stdout
    assert shm() == left
