"""How a run gets from a small learning rate to its large one.

A warm-up is a kind and a number of epochs, written ``gradual:5``. Where the published recipes disagree is in what they
start from and how often they step, so each has a name of its own:

========== ================================ =============================== ===========================================
kind       starts at                        rises                           from
========== ================================ =============================== ===========================================
none       the peak                         not at all                      Horovod's examples without warm-up
constant   the reference rate               not at all, then jumps          Goyal et al., the one that does not work
stepping   peak / (epochs + 1)              once an epoch                   the reference study
gradual    one worker's rate                once an epoch                   the reference study
iteration  the reference rate               every step                      Goyal et al., the one that works
horovod    peak / workers                   every step, a step ahead        Horovod's callback and its PyTorch example
zero       0                                every step                      tf_cnn_benchmarks, MLPerf
========== ================================ =============================== ===========================================
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from hora.errors import UsageError

__all__ = ["Kind", "Rates", "Warmup", "parse_warmup"]

Kind = Literal["none", "constant", "stepping", "gradual", "iteration", "horovod", "zero"]


class Rates(NamedTuple):
    """The rates that a warm-up lies between: at the reference batch, for one worker, and for all of them."""

    reference: float
    one_worker: float
    peak: float
    workers: int


class Warmup(NamedTuple):
    """
    >>> rates = Rates(reference=0.1, one_worker=0.05, peak=1.6, workers=32)
    >>> [round(Warmup("stepping", 5).rate(epoch, 0.0, rates), 4) for epoch in range(5)]
    [0.2667, 0.5333, 0.8, 1.0667, 1.3333]
    >>> [round(Warmup("gradual", 5).rate(epoch, 0.0, rates), 4) for epoch in range(5)]
    [0.05, 0.36, 0.67, 0.98, 1.29]
    """

    kind: Kind = "none"
    epochs: float = 0.0

    def covers(self, epoch: float) -> bool:
        """Whether this moment, in epochs since the start, is part of the warm-up."""
        return self.kind != "none" and epoch < self.epochs

    def rate(self, epoch: float, step: float, rates: Rates) -> float:
        """The rate at ``epoch`` (whole epochs and the fraction done), in a run whose steps are ``step`` epochs long."""
        done, whole = epoch / self.epochs, int(epoch)
        match self.kind:
            case "constant":
                return rates.reference
            case "stepping":
                return rates.peak * (whole + 1) / (self.epochs + 1)
            case "gradual":
                return rates.one_worker + whole * (rates.peak - rates.one_worker) / self.epochs
            case "iteration":
                return rates.reference + done * (rates.peak - rates.reference)
            case "horovod":  # counts the step that is about to be taken
                ahead = min(epoch + step, self.epochs) / self.epochs
                return rates.peak / rates.workers * (ahead * (rates.workers - 1) + 1)
            case "zero":
                return done * rates.peak
        return rates.peak

    def __str__(self) -> str:
        return "none" if self.kind == "none" else f"{self.kind}:{self.epochs:g}"


def parse_warmup(text: str) -> Warmup:
    """A warm-up as it is written on a command line; five epochs if no number is given.

    >>> parse_warmup("gradual:10"), parse_warmup("iteration"), parse_warmup("none")
    (Warmup(kind='gradual', epochs=10.0), Warmup(kind='iteration', epochs=5.0), Warmup(kind='none', epochs=0.0))
    """
    name, colon, number = text.strip().lower().partition(":")
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    if name not in kinds or (name == "none" and colon):
        raise UsageError(f"warm-up {text!r} is not known. Write one of {', '.join(kinds)}, such as gradual:5.")
    if name == "none":
        return Warmup()
    try:
        epochs = float(number) if colon else 5.0
    except ValueError:
        epochs = 0.0
    if not 0 < epochs < float("inf"):
        raise UsageError(f"warm-up {text!r}: {number!r} is not a number of epochs. Write for example {name}:5.")
    return Warmup(kinds[name], epochs)
