"""Rendezvous: who has said Hello for which generation, and who cannot be waited for any longer. Pure; time passed in.

Members gather under (members, generation): ``init(comm=[0, 2])`` makes a world of its own. A gathering ends in one of
two ways, and within its deadline: all are there, or everyone who came is told who is missing and why.
"""

from __future__ import annotations

from hora.engine.explain import compact_ranks
from hora.engine.gathering import HelloRefused, MembersReady
from hora.wire.messages import Hello

__all__ = ["Rendezvous"]

Key = tuple[tuple[int, ...], int]


Outcome = MembersReady | HelloRefused


class Rendezvous:
    """The gatherings of a launched world of ``size`` ranks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._gatherings: dict[Key, dict[int, Hello]] = {}
        self._deadlines: dict[Key, float] = {}
        self._newest: dict[tuple[int, ...], int] = {}  # the latest generation that gathered, by members
        self._gone: dict[int, str] = {}  # ranks whose process has ended, and how

    @property
    def waiting(self) -> bool:
        return bool(self._gatherings)

    def hello(self, hello: Hello, now: float) -> list[Outcome]:
        """A worker has come."""
        if (text := self._invalid(hello)) is not None:
            return [HelloRefused(hello, "usage", text)]
        newest = self._newest.get(hello.members, -1)
        if hello.generation <= newest:
            text = (
                f"rank {hello.rank} asked for generation {hello.generation}, but generation {newest} of these ranks "
                "has already begun: this process is left over from an earlier one. It must not go on; end it."
            )
            return [HelloRefused(hello, "stale", text)]
        for rank in hello.members:
            if rank in self._gone:
                return [HelloRefused(hello, "lost", self._lost_text(rank))]
        key = (hello.members, hello.generation)
        came = self._gatherings.setdefault(key, {})
        came[hello.rank] = hello
        deadline = now + hello.settings.start_deadline_s(len(hello.members))
        self._deadlines[key] = max(self._deadlines.get(key, 0.0), deadline) if len(came) == 1 else self._deadlines[key]
        if len(came) < len(hello.members):
            return self._clashes(hello)
        self._drop(key)
        self._newest[hello.members] = hello.generation
        overtaken = [k for k in self._gatherings if k[0] == hello.members and k[1] < hello.generation]
        return [MembersReady(tuple(came[rank] for rank in hello.members)), *self._turn_away_all(overtaken, "stale")]

    def ended(self, rank: int, status: str, *, left: bool = False) -> list[Outcome]:
        """The process of ``rank`` has ended; nobody need wait for it."""
        self._gone[rank] = status
        outcomes: list[Outcome] = []
        for key in [key for key in self._gatherings if rank in key[0]]:
            for hello in self._drop(key).values():
                if hello.rank != rank:
                    outcomes.append(HelloRefused(hello, "lost", self._lost_text(rank)))
        return outcomes

    def given_up(self, by: int, rank: int, status: str, *, host: bool) -> list[Outcome]:
        return []  # the generation ends, and with it the job

    def entered(self, rank: int) -> list[Outcome]:
        return []

    def started(self, rank: int) -> None:
        """A new process for ``rank``."""
        self._gone.pop(rank, None)

    def expire(self, now: float) -> list[Outcome]:
        """Turn away those who have waited long enough."""
        late = [key for key, deadline in self._deadlines.items() if now >= deadline]
        return self._turn_away_all(late, "stall")

    # ---- why not ----

    def _invalid(self, hello: Hello) -> str | None:
        if hello.size != self._size:
            return f"rank {hello.rank} expects {hello.size} workers, but {self._size} workers were launched."
        members = hello.members
        if sorted(set(members)) != list(members) or not all(0 <= rank < self._size for rank in members):
            return f"ranks {list(members)} are not an ascending list of ranks between 0 and {self._size - 1}."
        if hello.rank not in members:
            return f"rank {hello.rank} asked for a world of ranks {list(members)}, in which it is not."
        return None

    def _lost_text(self, rank: int) -> str:
        return (
            f"rank {rank} ended ({self._gone[rank]}) before all ranks had called init(), so the others cannot start.\n"
            f"Look at the output of rank {rank} for the reason."
        )

    def _clashes(self, hello: Hello) -> list[Outcome]:
        """Members that gather at the same generation under another list will never meet: say so at once."""
        key = (hello.members, hello.generation)
        rivals = [
            k for k, came in self._gatherings.items()
            if k != key and k[1] == key[1] and (came.keys() & set(key[0]) or self._gatherings[key].keys() & set(k[0]))
        ]  # fmt: skip
        return self._turn_away_all([key, *rivals], "usage") if rivals else []

    def _turn_away_all(self, keys: list[Key], kind: str) -> list[Outcome]:
        came = {key: self._gatherings[key] for key in keys}
        table = "\n".join(
            f"  {compact_ranks(hellos)} called init() for {compact_ranks(members)}"
            for (members, _), hellos in came.items()
        )
        outcomes: list[Outcome] = []
        for (members, generation), hellos in came.items():
            missing = compact_ranks(rank for rank in members if rank not in hellos)
            match kind:
                case "usage":
                    text = f"the ranks disagree on who belongs together:\n{table}\nPass the same comm= on all of them."
                case "stale":
                    text = f"generation {generation} was overtaken by a newer one. End this process."
                case _:
                    some = next(iter(hellos.values()))
                    waited_s = some.settings.start_deadline_s(len(members))
                    text = (
                        f"{missing} did not call init() within {waited_s:g} s; {compact_ranks(hellos)} did and cannot "
                        "start alone.\nLook at what the missing did instead; raise HORA_START_TIMEOUT if starting "
                        "only takes longer."
                    )
            outcomes += [HelloRefused(hello, kind, text) for hello in self._drop((members, generation)).values()]
        return outcomes

    def _drop(self, key: Key) -> dict[int, Hello]:
        del self._deadlines[key]
        return self._gatherings.pop(key)
