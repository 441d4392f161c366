"""One rank of a pool: runs the programs it is told to, through ``hora.torch``, and reports what was wrong.

``python worker.py SOCKET FOLDER``: tasks come and answers go over the socket, a JSON object a line; where it stands
when it hangs is written to ``FOLDER/stacks.RANK``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.light import light_torch

    light_torch()

import numpy as np
import torch
from tests.programs.model import Array, Model
from tests.programs.order import Instance, order_of
from tests.programs.program import Op, Phase, Program, draw, mix

import hora.torch as hvd

MOST_TOLD = 4  # wrong results of a rank
TOLERANCE = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-9}  # of Adasum


class Run:
    """One program on one rank; ``end`` ends the process, saying why."""

    def __init__(self, program: Program, rank: int, end: Callable[[str], None], spoil: str = "") -> None:
        self.end = end
        self.program, self.rank, self.model = program, rank, Model(program)
        self.spoil = spoil if rank == program.size - 1 else ""
        self.sets: list[hvd.ProcessSet] = []
        self.wrong: list[str] = []
        self.operations = 0
        self.doing: dict[str, tuple[str, Instance]] = {}  # by thread
        self._lock = threading.Lock()
        chance = random.Random(f"{program.seed}.{program.number}.{rank}")
        self.pause = chance.choice((0.0, 0.05, 0.5))
        self.seed = chance.random()

    def start(self) -> None:
        for name, value in self.program.settings.items():
            os.environ[name] = value
        wanted = [hvd.ProcessSet(list(members)) for members in self.program.sets[1:]]
        if self.program.sets_at_init:
            hvd.init(process_sets=wanted)
        else:
            hvd.init()
            for process_set in wanted:
                hvd.add_process_set(process_set)
        self.sets = [hvd.global_process_set, *wanted]

    def run(self, beat: Callable[[], None]) -> None:
        """All phases; ``beat`` is called before each."""
        last_to_join: list[int] = []
        for number, phase in enumerate(self.program.phases):
            beat()
            if phase.renew_set:
                assert hvd.remove_process_set(self.sets[phase.renew_set])
                self.sets[phase.renew_set] = hvd.add_process_set(list(self.program.sets[phase.renew_set]))
            first, *others = [_Part(self, number, phase, t) for t in range(len(phase.threads))]
            threads = [threading.Thread(target=part.follow_beside, name=part.name) for part in others]
            for thread in threads:
                thread.start()
            first.follow()
            for thread in threads:
                thread.join()
            if phase.quotas:
                last_to_join.append(hvd.join(average_active=phase.average_active))
        if last_to_join:  # not before: that would keep ranks in step from one join to the next
            said = hvd.allgather(torch.tensor([last_to_join]), name="last to join").tolist()
            if any(words != last_to_join for words in said):
                self.told(f"who was last to join, at each join, rank by rank: {said}")
        if self.program.barrier_at_end:
            hvd.barrier()

    def told(self, text: str) -> None:
        with self._lock:
            self.wrong.append(text)


class _Part:
    """One thread's part of a phase."""

    def __init__(self, run: Run, number: int, phase: Phase, thread: int) -> None:
        self.name = f"phase {number} thread {thread}"
        self.work, self.phase, self.operations = run, phase, phase.threads[thread]
        self.chance = random.Random(f"{run.seed}.{number}.{thread}")
        self._kept: dict[tuple[int, int], torch.Tensor] = {}
        self._flying: dict[Instance, tuple[int, list[torch.Tensor]]] = {}
        self._later: list[tuple[Instance, list[torch.Tensor], list[Array]]] = []  # to be looked at again

    def follow_beside(self) -> None:
        """The same in a thread of its own."""
        try:
            self.follow()
        except BaseException:  # the main thread may be waiting for what will never come
            self.work.end(traceback.format_exc())

    def follow(self) -> None:
        """Do all of it."""
        work, phase = self.work, self.phase
        everything = [(op, step) for step in range(phase.steps) for op in self.operations]
        mine = [Instance(op, step, index) for index, (op, step) in enumerate(everything)]
        mine = [i for i in mine if work.rank in work.program.contributors(phase, i.op, i.index)]
        if work.spoil == "absent" and mine:
            mine.pop(len(mine) // 2)
        for what, instance in order_of(mine, phase.fresh, phase.window, self.chance):
            self._dawdle()
            work.doing[self.name] = (what, instance)
            if what == "wait":
                handle, given = self._flying.pop(instance)
                if self.chance.random() < 0.2:
                    hvd.poll(handle)
                self._check(instance, given, hvd.synchronize(handle))
            elif instance.op.kind == "barrier":
                self._barrier(instance)
            else:
                given = self._inputs(instance)
                answer = self._call(instance, given)
                if what == "submit":
                    self._flying[instance] = (answer, given)
                else:
                    self._check(instance, given, answer)
            work.operations += what != "wait"
        for instance, results, expected in self._later:
            for number, (result, right) in enumerate(zip(results, expected, strict=False)):
                self._compare(instance, number, result, right, "result, later")

    def _dawdle(self) -> None:
        if self.chance.random() < self.work.pause:
            how = self.chance.random()
            if how < 0.5:
                os.sched_yield()
            else:
                time.sleep(0 if how < 0.8 else self.chance.random() * 1e-3)

    def _name(self, instance: Instance) -> str | None:
        name = instance.op.name
        return f"{name}.{self.name}.{instance.step}" if name is not None and self.phase.fresh else name

    def _call(self, instance: Instance, given: list[torch.Tensor]) -> Any:
        op = instance.op
        call: dict[str, Any] = {"name": self._name(instance), "process_set": self.work.sets[op.set]}
        if op.kind in ("allreduce", "reducescatter"):
            call |= {"op": getattr(hvd, op.how.capitalize())}
            call |= {"prescale_factor": op.prescale, "postscale_factor": op.postscale}
        if op.compression != "none":
            call |= {"compression": getattr(hvd.Compression, op.compression)}
        if op.kind == "broadcast":
            call |= {"root_rank": op.root}
        if op.kind == "alltoall" and op.splits:
            call |= {"splits": list(self.work.program.sent(op, instance.step, self.work.rank))}
        return getattr(hvd, op.function)(given if op.grouped else given[0], **call)

    # ---- tensors ----

    def _inputs(self, instance: Instance) -> list[torch.Tensor]:
        op, work = instance.op, self.work
        given = []
        for number, dtype in enumerate(op.dtypes):
            brought = work.model.brought(self.phase, op, instance.step, work.rank, number)
            tensor = self._memory(op, number, tuple(brought.shape), getattr(torch, dtype))
            tensor.copy_(torch.from_numpy(brought))
            given.append(tensor)
        if work.spoil == "wrong" and op.kind == "allreduce" and given[0].numel():
            given[0].view(-1)[0] += 1
        return given

    def _memory(self, op: Op, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        memory, work = op.memory, self.work
        if memory == "mixed":
            memory = "shared" if mix(work.program.seed, work.program.number, op.number, work.rank) & 1 else "kept"
        count = math.prod(shape)
        once = op.name is not None and not self.phase.fresh  # else two steps of it may be in flight
        if memory in ("kept", "shared") and once:
            most = max(count, math.prod(op.shapes[number]))
            block = self._kept.get((op.number, number))
            if block is None:
                make = hvd.shared_empty if memory == "shared" else torch.empty
                block = make(most + 3, dtype=dtype)
                # Not always where memory begins.
                start = mix(op.number, number, work.program.number) % 8
                block = self._kept[op.number, number] = block[start if start < 4 else 0 :][:most]
            return block[:count].view(shape)
        if memory == "shared":
            return hvd.shared_empty(shape, dtype=dtype)
        if memory == "strided" and shape:
            return torch.empty((*shape[:-1], shape[-1], 2), dtype=dtype)[..., 0]
        return torch.empty(shape, dtype=dtype)

    # ---- checks ----

    def _check(self, instance: Instance, given: list[torch.Tensor], answer: Any) -> None:
        op, work = instance.op, self.work
        if op.kind == "alltoall" and op.splits:
            answer, rows = answer
            wanted = work.model.received(op, instance.step, work.rank)
            if rows.tolist() != wanted:
                self._told(instance, f"rows received: expected {wanted}, got {rows.tolist()}")
        results = list(answer) if op.grouped else [answer]
        expected = work.model.expected(self.phase, op, instance.step, instance.index, work.rank)
        if len(results) != len(expected):
            self._told(instance, f"expected {len(expected)} tensors, got {len(results)}")
        for number, (result, right) in enumerate(zip(results, expected, strict=False)):
            self._compare(instance, number, result, right)
        if op.in_place:
            if any(result is not tensor for result, tensor in zip(results, given, strict=True)):
                self._told(instance, "in place, but another tensor was returned")
            return
        if self.chance.random() < 0.3:  # what was given must not have changed
            for number, tensor in enumerate(given):
                brought = work.model.brought(self.phase, op, instance.step, work.rank, number)
                self._compare(instance, number, tensor, brought, "input afterwards")
        if self.chance.random() < 0.1:  # nor must a result change when others follow
            self._later.append((instance, results, expected))

    def _compare(
        self, instance: Instance, number: int, result: torch.Tensor, right: Array, what: str = "result"
    ) -> None:
        op = instance.op
        dtype = getattr(torch, op.dtypes[number])
        if result.dtype != dtype or tuple(result.shape) != right.shape:
            self._told(
                instance,
                f"tensor {number}, {what}: expected {dtype}{list(right.shape)}, got {result.dtype}{list(result.shape)}",
            )
            return
        wanted = torch.from_numpy(np.ascontiguousarray(right).reshape(right.shape)).to(dtype)
        if torch.equal(result, wanted):
            return
        difference = result.double().sub(wanted.double()).abs().reshape(-1)
        if op.how == "adasum" and op.kind == "allreduce" and what != "input afterwards":
            bound = TOLERANCE[dtype] * float(wanted.double().abs().max())
            bad = ~(difference <= bound)
        else:
            bad = difference != 0
        if not bad.any():
            return
        places = bad.nonzero().reshape(-1)
        first, last = int(places[0]), int(places[-1])
        some = slice(first, first + 6)
        self._told(
            instance,
            f"tensor {number}, {what}: {len(places)} of {result.numel()} elements are wrong, from {first} to {last}."
            f" From {first} on: expected {wanted.reshape(-1)[some].tolist()}, got {result.reshape(-1)[some].tolist()}",
        )

    def _barrier(self, instance: Instance) -> None:
        """Nobody is through before everybody has come; the clock is the same for all on one machine."""
        process_set = self.work.sets[instance.op.set]
        came = time.monotonic_ns()
        hvd.barrier(process_set=process_set)
        left = time.monotonic_ns()
        everybody = hvd.allgather(torch.tensor([came]), name="barrier", process_set=process_set)
        if int(everybody.max()) > left:
            self._told(instance, f"left at {left}, but others came at {everybody.tolist()}")

    def _told(self, instance: Instance, text: str) -> None:
        members = list(self.work.program.sets[instance.op.set])
        self.work.told(f"{self.name}, step {instance.step}, ranks {members}, {instance.op}\n    {text}")


# ---- the circumstances ----


@contextlib.contextmanager
def circumstances(program: Program, rank: int, idle: bool, company: bool) -> Iterator[None]:
    """This rank at a low priority if ``idle``, beside a Python thread that is always busy if ``company``: at times."""
    chance = random.Random(f"{program.seed}.{program.number}.{rank}.circumstances")
    uneven = len(program.phases) > 3 and all(phase.quotas for phase in program.phases)
    policy = chance.choices(("", "nice", "idle"), (6, 2, 2))[0]
    busy = chance.random() < (0.8 if uneven else 0.03)
    stop = threading.Event()
    interval = sys.getswitchinterval()
    with contextlib.ExitStack() as stack:
        if policy and idle:  # threads that are started from now on inherit it
            stack.callback(os.setpriority, os.PRIO_PROCESS, 0, 0)
            stack.callback(os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0))
            if policy == "idle":
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            else:
                os.setpriority(os.PRIO_PROCESS, 0, 19)
        if busy and company:
            sys.setswitchinterval(chance.choice((0.005, 0.01)))
            stack.callback(sys.setswitchinterval, interval)
            thread = threading.Thread(target=_spin, args=(stop,), name="busy")
            thread.start()
            stack.callback(thread.join)
            stack.callback(stop.set)
        yield


def _spin(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(100))


class Watch:
    """Writes where all threads stand, and what ``tell`` says, unless it is started again or left in time."""

    def __init__(self, timeout_s: float, tell: Callable[[TextIO], None], stacks: TextIO) -> None:
        self._timeout_s, self._tell, self._stacks, self._late = timeout_s, tell, stacks, threading.Timer(0, print)

    def start(self) -> None:
        self._late.cancel()
        self._late = threading.Timer(self._timeout_s - 1, self._tell, [self._stacks])
        self._late.start()
        faulthandler.dump_traceback_later(self._timeout_s, file=self._stacks)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._late.cancel()
        faulthandler.cancel_dump_traceback_later()


class Worker:
    """A rank's end of the line to the pool."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self._lines, self._lock = rank, connection.makefile("rw", buffering=1), threading.Lock()
        self._run: Run
        self.say(rank=rank)

    def say(self, **word: object) -> None:
        print(json.dumps(word), file=self._lines, flush=True)

    def serve(self, stacks: TextIO) -> None:
        for line in self._lines:
            task = json.loads(line)
            with Watch(task["timeout_s"], self._tell_what, stacks) as watch:
                try:
                    run = self.perform(**task, watch=watch)
                except BaseException:
                    self.end(traceback.format_exc())
            more = [f"… and {len(run.wrong) - MOST_TOLD} more"] if len(run.wrong) > MOST_TOLD else []
            self.say(operations=run.operations, wrong=[*run.wrong[:MOST_TOLD], *more])

    def perform(
        self, seed: int, number: int, size: int, kept: list[int] | None, without: list[str],
        idle: bool, company: bool, spoil: str, watch: Watch, **_: object,
    ) -> Run:  # fmt: skip
        """Run one program."""
        program = draw(seed, number, size, without)
        if kept is not None:
            program = program.only(set(kept))

        def beat() -> None:
            watch.start()
            self.say(goes_on=True)

        with circumstances(program, self.rank, idle, company):
            self._run = run = Run(program, self.rank, self.end, spoil)
            run.start()
            run.run(beat)
            hvd.shutdown()
        return run

    def _tell_what(self, stacks: TextIO) -> None:
        """What this rank is about, beside where it stands in the code, which faulthandler says."""
        for part, (what, instance) in self._run.doing.items():
            print(f"{part}, step {instance.step}: {what} {instance.op}", file=stacks, flush=True)

    def end(self, failure: str) -> NoReturn:
        """This rank is out of step with the others, for whom it is best to see it die."""
        with self._lock:  # one thread's words are enough
            self.say(failure=failure)
            os._exit(1)


def main(path: str, folder: str) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    hvd.init()
    rank = hvd.rank()
    hvd.shutdown()
    with socket.socket(socket.AF_UNIX) as connection, (Path(folder) / f"stacks.{rank}").open("w") as stacks:
        connection.connect(path)
        Worker(rank, connection).serve(stacks)


if __name__ == "__main__":
    main(*sys.argv[1:])
