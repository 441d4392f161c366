"""Whole elastic jobs in one thread, from a seed: workers that start, train, die, hang and finish, hosts that come and
go.

Each schedule drives ``Membership`` as hub and launcher do, in any order of events that could really occur, and checks
after each event what must always hold; then the faults stop, and the job must get to its end.
``python -m tests.elastic --count 100000 --seed 1`` runs many.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hora.elastic.membership import (
    Action,
    AnnounceUpdate,
    ElasticLimits,
    EndWorker,
    FailJob,
    FormGeneration,
    Membership,
    StartWorker,
    TellUser,
)

HOSTS = ("a", "b", "c")


class Broken(AssertionError):
    """Something that must hold does not."""


class Simulation:
    """One job. ``phase`` of a worker: starting, waiting (has said hello), training, or leaving (on its way back)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        low = self.random.randint(1, 3)
        high = self.random.randint(low, 6)
        self.limits = ElasticLimits(
            min_np=low,
            max_np=high,
            np=self.random.choice([0, low, high]),
            spares=self.random.choice([0, 0, 1, 2]),
            reset_limit=self.random.choice([None, None, None, 2]),
            timeout_s=20.0,
            rest_s=(1.0, 8.0),
            start_s=5.0,
            restartable=self.random.random() < 0.2,
        )
        self.membership = Membership(self.limits, self.random.random)
        self.now = 0.0
        self.hosts: dict[str, int] = {}
        self.phase: dict[int, str] = {}
        self.place: dict[int, tuple[str, int]] = {}
        self.holders: set[int] = set()  # live workers that have been members
        self.generation = 0
        self.members: tuple[int, ...] = ()
        self.told = False
        self.asked: dict[int, bool] = {}  # to end
        self.failed = ""
        self.finished = False
        self.log: list[str] = []

    # ---- what the launcher and the hub do ----

    def do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.log.append(f"{self.now:.1f} {action}")
            match action:
                case StartWorker(worker=worker, host=host, slot=slot):
                    self.check(worker not in self.place, "a worker's number is used once")
                    self.check(host in self.hosts, "workers are started on hosts there are")
                    taken = [w for w in self.phase if self.place[w] == (host, slot)]
                    self.check(not taken, "a slot holds one worker")
                    self.check(not self.finished, "nothing is started once the training is done")
                    self.phase[worker], self.place[worker] = "starting", (host, slot)
                case EndWorker(worker=worker, fault=fault):
                    self.check(worker in self.phase, "who is ended is alive")
                    self.asked[worker] = fault
                case FormGeneration(generation=generation, members=members):
                    self.form(generation, members)
                case AnnounceUpdate(generation=generation):
                    self.check(generation == self.generation, "only the current generation is told")
                    self.told = True
                case FailJob(text=text):
                    self.check(bool(text), "a failure has a reason")
                    self.failed = text
                case TellUser():
                    pass

    def form(self, generation: int, members: tuple[int, ...]) -> None:
        self.check(generation == self.generation + 1, "generations are numbered one by one")
        self.check(len(set(members)) == len(members), "nobody is in a generation twice")
        self.check(all(self.phase.get(m) == "waiting" for m in members), "members are alive and wait")
        inside = [w for w, phase in self.phase.items() if phase in ("training", "leaving") and w not in self.asked]
        self.check(not inside, f"nobody is left in the old generation: {inside}")
        enough = len(members) >= self.limits.min_np or self.finished
        unwanted = [m for m in members if not self.within_slots(m)]
        most = self.limits.max_np + len(unwanted)
        self.check(enough and len(members) <= most and len(unwanted) <= 1, "there are neither too few nor too many")
        rightful = {w for w in self.holders if self.within_slots(w) and w not in self.asked}
        self.check(not unwanted or not rightful, "an unwanted one stays only if nobody else holds the state")
        waiting = {w for w in self.holders if w not in self.asked and self.within_slots(w)}
        full = len(members) - len(unwanted) == self.limits.max_np
        self.check(full or waiting <= set(members), f"who holds the state is in: {waiting}")
        if self.holders - self.asked.keys():
            self.check(members[0] in self.holders, "the first rank holds the state")
        elif self.generation:
            self.check(self.limits.restartable, "without the state a job only goes on from a checkpoint")
        hosts = [self.place[m][0] for m in members]
        self.check(
            len(set(hosts)) == sum(a != b for a, b in zip(hosts, [None, *hosts], strict=False)), "hosts are not mixed"
        )
        self.generation, self.members, self.told = generation, members, False
        self.holders |= set(members)
        for member in members:
            self.phase[member] = "training"

    def within_slots(self, worker: int) -> bool:
        host, slot = self.place[worker]
        return slot < self.hosts.get(host, -9) + self.limits.spares

    def check(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise Broken(f"seed {self.seed}: {sentence}\n" + "\n".join(self.log[-60:]))

    # ---- what may happen ----

    def end(self, worker: int, fault: bool) -> None:
        self.log.append(f"{self.now:.1f} worker {worker} ({self.phase[worker]}) ends, {'fault' if fault else 'well'}")
        was = self.phase.pop(worker)
        self.holders.discard(worker)
        self.asked.pop(worker, None)
        if fault and was in ("training", "leaving"):
            self.break_up()
        self.do(self.membership.ended(worker, self.now, fault=fault))

    def break_up(self) -> None:
        """A death ends the generation: those in it notice, and leave it."""
        for worker, phase in self.phase.items():
            if phase == "training":
                self.phase[worker] = "leaving"

    def hello(self, worker: int) -> None:
        self.log.append(f"{self.now:.1f} worker {worker} ({self.phase[worker]}) says hello")
        self.phase[worker] = "waiting"
        self.do(self.membership.hello(worker, self.now))

    def find_hosts(self, hosts: dict[str, int]) -> None:
        self.hosts = hosts
        self.log.append(f"{self.now:.1f} hosts {hosts}")
        self.do(self.membership.hosts(hosts, self.now))

    def some_hosts(self) -> dict[str, int]:
        names = self.random.sample(HOSTS, self.random.randint(1, len(HOSTS)))
        return {name: self.random.randint(1, 3) for name in names}

    def step(self, faults: bool) -> None:
        """One thing that may happen now."""
        self.now += self.random.choice([0.0, 0.01, 0.1, 0.5, 2.0] if faults else [0.0, 0.01, 0.1])
        choices = ["tick"]
        choices += ["hello"] * 4 if self.in_phase("starting", "leaving") else []
        choices += ["leave"] * 3 if self.told and self.in_phase("training") else []
        choices += ["obey"] * 2 if self.asked else []
        if faults:
            choices += ["kill"] if self.phase else []
            choices += self.random.choice([["hosts"], ["stop"], [], []])
        elif self.in_phase("training"):
            choices += ["finish"]
        match self.random.choice(choices):
            case "tick":
                self.do(self.membership.tick(self.now))
            case "hello":
                self.hello(self.random.choice(self.in_phase("starting", "leaving")))
            case "leave":  # all of them leave at the same commit
                self.break_up()
            case "obey":
                worker = self.random.choice(list(self.asked))
                self.end(worker, fault=True)
            case "kill":
                worker = self.random.choice(list(self.phase))
                if not (self.is_last(worker) and self.random.random() < 0.9):
                    self.end(worker, fault=True)
            case "stop" if self.phase:
                worker = self.random.choice(list(self.phase))
                if worker not in self.asked and not self.is_last(worker):
                    self.do(self.membership.silent(worker, self.now, "it is stopped"))
            case "hosts":
                self.find_hosts(self.some_hosts())
            case "finish" if all(self.phase.get(m) == "training" for m in self.members if m in self.phase):
                self.finished = True
                self.end(self.random.choice(self.in_phase("training")), fault=False)

    def is_last(self, worker: int) -> bool:
        """Whether the state dies with it."""
        return worker in self.holders and not (self.holders - {worker} - self.asked.keys())

    def in_phase(self, *phases: str) -> list[int]:
        return [w for w, phase in self.phase.items() if phase in phases and w not in self.asked]

    def run(self, events: int = 60) -> None:
        """``events`` with faults; then without, until the job has ended."""
        self.find_hosts(self.some_hosts())
        for _ in range(events):
            if self.failed or self.finished:
                break
            self.step(faults=True)
        if not self.failed and not self.finished:
            self.find_hosts({"a": 3, "b": 3})
        quiet = self.now + self.limits.timeout_s if not self.failed else 1e9
        for _ in range(3000):
            if self.failed or (self.finished and not self.phase):
                in_time = self.now < quiet or "has waited" not in self.failed
                self.check(in_time, "with enough hosts it need not wait for long")
                return
            self.step(faults=False)
        self.check(False, f"the job comes to an end; it stands at {self.phase}, asked {self.asked}")
