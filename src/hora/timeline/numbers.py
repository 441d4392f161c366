"""What is measured of a timeline: the figures that verdicts, tables and reports are made of."""

from __future__ import annotations

import msgspec

__all__ = ["Fusion", "Gap", "KindTime", "Late", "Numbers", "RankTime", "Tensor", "Unfinished"]


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's time divides. The five parts of ``window_us`` add up to it; so do those of ``exposed_us``."""

    rank: int
    own_file: bool
    begin_us: int  # of the window: the steps that are looked at
    window_us: int
    steps: int  # in the window; 0 if no name came three times
    all_steps: int  # in the file
    step_us: float  # in the median
    step_p90_us: float
    move_us: int
    copy_us: int
    queue_us: int
    wait_us: int
    idle_us: int
    blocking: bool  # one operation at a time
    exposed_us: int
    exposed_wait_us: int
    exposed_wait_for_us: dict[int, int]  # by the rank waited for
    exposed_tiny_us: int  # of it, not waiting, in batches below 64 KB
    exposed_small_us: int  # of it, not waiting, in batches from there to 1 MB
    exposed_tiny_wait_us: int
    exposed_copy_us: int
    exposed_move_us: int
    wait_for_us: dict[int, int]
    late_steps: dict[int, int]  # steps in which most of the waiting was for this rank

    @property
    def in_flight_us(self) -> int:
        return self.window_us - self.idle_us

    def share(self, us: float) -> float:
        return us / self.window_us if self.window_us else 0.0


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """How late one rank is."""

    rank: int
    last: int  # operations at which it was the last to arrive
    of: int  # operations whose arrivals are known
    median_us: float  # after the first rank, when it was last
    p90_us: float
    wait_us: int  # that another rank spent waiting for it, of the rank that waited least


class KindTime(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operation, moved in one way."""

    kind: str
    label: str
    operations: int
    batches: int
    nbytes: int  # of those whose size is known
    move_us: int  # the time of all batches
    known_us: int  # of those whose size is known

    @property
    def bytes_per_s(self) -> float | None:
        return self.nbytes / self.known_us * 1e6 if self.known_us and self.nbytes else None


class Fusion(msgspec.Struct, frozen=True, kw_only=True):
    """How well operations were put together."""

    operations: int
    batches: int
    tiny: int  # batches of less than 64 KB
    sized: int  # batches whose size is known
    median_bytes: float
    bytes: int
    per_step: float  # batches a step; all of them if there are no steps
    tiny_us: float  # what a tiny one takes, in the median

    @property
    def step_bytes(self) -> float:
        """What moves in a step."""
        return self.bytes / max(1, self.batches) * self.per_step


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One name."""

    name: str
    kind: str
    count: int
    nbytes: int
    wait_us: float  # from the first rank's arrival to the last's, in the median
    move_us: float  # its share of its batches by bytes, in the median
    total_us: float  # of all its movement


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch with nothing in flight."""

    rank: int
    at_us: int
    length_us: int
    after: str
    before: str


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that never ended."""

    name: str
    kind: str
    arrived: list[int]
    agreed: bool


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured."""

    ranks: list[RankTime]
    world: list[int]  # ranks that are spoken of
    late: list[Late]
    arrivals_known: bool
    kinds: list[KindTime]
    fusion: Fusion
    tensors: list[Tensor]
    gaps: list[Gap]
    gap_us: float  # in the median
    unfinished: list[Unfinished]
    failed: int
