"""Trials side by side: several at once, each on hosts of its own, ahead of the experiment that then takes them as done.

A lane is a part of the hosts that has room for a trial. A trial's record does not say which lane it had: it is the same
question wherever it is asked. Ctrl-C ends all of them; what is done is kept, as ever.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hora.lab import trial as trials
from hora.lab.trial import Trial, TrialOutcome
from hora.launch.planning.hosts import Host

__all__ = ["run_parallel", "split_hosts"]


def split_hosts(hosts: Sequence[Host], workers: int) -> list[str]:
    """Hosts divided into parts with room for that many workers each, as ``-H`` takes them; one part if there is no room
    for two.

    >>> split_hosts([Host("a", 2), Host("b", 2), Host("c", 4)], 2)
    ['a:2', 'b:2', 'c:2']
    >>> split_hosts([Host("a", 2), Host("b", 2), Host("c", 4)], 4)
    ['a:2,b:2', 'c:4']
    """
    made, part, room = [], [], 0
    for host in hosts:
        taken = min(host.slots, workers - room)
        part.append(f"{host.name}:{taken}")
        room += taken
        if room == workers:
            made.append(",".join(part))
            part, room = [], 0
    return made or [",".join(f"{host.name}:{host.slots}" for host in hosts)]


def run_parallel(
    wanted: Sequence[Trial],
    folder: Path,
    hosts: Sequence[Host],
    say: Callable[[str], None],
    told: Callable[[TrialOutcome], str] = lambda outcome: outcome.state,
) -> None:
    """Run these trials in ``folder``/NAME, as many at once as there are lanes for the largest. What cannot be had is
    left to the experiment to find out."""
    places = split_hosts(hosts, max((trial.workers for trial in wanted), default=1))
    if len(places) < 2 or len(wanted) < 2:
        return
    free: queue.SimpleQueue[str] = queue.SimpleQueue()
    for place in places:
        free.put(place)
    stop, lock, done = threading.Event(), threading.Lock(), 0
    say(f"{len(wanted)} trials, {len(places)} at a time: on {'; '.join(places)}")

    def look(seconds: float) -> None:
        if stop.is_set():
            raise KeyboardInterrupt

    def one(trial: Trial) -> None:
        nonlocal done
        if stop.is_set():
            return
        place = free.get()
        try:
            outcome = trials.run(trial, folder / trial.name, look=look, place=place)
            with lock:
                done += 1
                say(f"{done}/{len(wanted)} {trial.name} on {place}: {told(outcome)}")
        except BaseException:
            stop.set()  # before another takes the place
            raise
        finally:
            free.put(place)

    with ThreadPoolExecutor(len(places)) as pool:
        under_way = [pool.submit(one, trial) for trial in wanted]
        try:
            for future in under_way:
                future.result()
        except BaseException:
            stop.set()  # the others leave within a second, and end what they have started
            for future in under_way:
                future.cancel()
            raise
