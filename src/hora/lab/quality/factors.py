"""What is changed against one worker, one thing at a time: the rule of the learning rate, its warm-up, the batch.

The names are those of the reference study's experiments 4 to 9. Its warm-ups take 5 or 10 of its 90 epochs; in a run of
another length they take the same share. A share of less than three epochs leaves no stairs to climb, so there the rate
rises at every step, between the same two rates. Any warm-up of `hora plan` is a factor too, written as there
(``iteration:2``): linear scaling with it, over exactly that many epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from hora.errors import UsageError
from hora.schedule import parse_decay, parse_warmup
from hora.schedule.decay import Decay
from hora.workloads import WorkloadOptions, options_of

__all__ = ["BASELINE", "FACTORS", "STUDY_EPOCHS", "Factor", "Recipe", "parse_factors", "scaled_decay"]

STUDY_EPOCHS = 90
FEWEST_STAIRS = 3  # epochs; a staircase of fewer is hardly one
Kind = Literal["none", "stepping", "gradual"]


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train on many workers."""

    name: str
    scaled: bool = True  # the rate grows with the global batch
    kind: Kind = "none"  # of the warm-up
    of_90: float = 0  # its epochs, of the study's 90
    warmup: str = ""  # or as `hora plan` has it
    parts: int = 1  # that the batch of each worker is divided by

    @property
    def warms_up(self) -> bool:
        return self.kind != "none" or self.warmup not in ("", "none")

    def warmup_in(self, epochs: float) -> str:
        """The warm-up of a run of that many epochs, as `hora plan` has it.

        >>> [FACTORS["gradual5"].warmup_in(epochs) for epochs in (90, 9)], FACTORS["stepping"].warmup_in(9)
        (['gradual:5', 'horovod:0.5'], 'zero:0.5')
        """
        if self.warmup or self.kind == "none":
            return self.warmup or "none"
        long = epochs * self.of_90 / STUDY_EPOCHS
        if round(long, 9) >= FEWEST_STAIRS:
            return f"{self.kind}:{long:.3g}"
        return f"{'zero' if self.kind == 'stepping' else 'horovod'}:{long:.3g}"


BASELINE = Factor(name="baseline")
FACTORS = {
    factor.name: factor
    for factor in (
        Factor(name="naive", scaled=False),
        Factor(name="linear"),
        Factor(name="stepping", kind="stepping", of_90=5),
        Factor(name="gradual5", kind="gradual", of_90=5),
        Factor(name="gradual10", kind="gradual", of_90=10),
        Factor(name="reduced-batch", kind="stepping", of_90=5, parts=4),
    )
}


def parse_factors(text: str) -> tuple[Factor, ...]:
    """Factors by name, with commas between.

    >>> [factor.name for factor in parse_factors("naive, gradual5,iteration:2")]
    ['naive', 'gradual5', 'iteration:2']
    >>> parse_factors("naive,magic")
    Traceback (most recent call last):
    hora.errors.UsageError: --factors naive,magic: 'magic' is not one. It can be naive, linear, stepping, gradual5, ...
    """
    found: dict[str, Factor] = {}
    for part in text.split(","):
        name = part.strip().lower()
        if name in FACTORS:
            found[name] = FACTORS[name]
            continue
        try:
            warmup = parse_warmup(name) if ":" in name else None
        except UsageError as error:
            raise UsageError(f"--factors {text}: {error}") from None
        if warmup is None:
            raise UsageError(
                f"--factors {text}: {part.strip()!r} is not one. It can be {', '.join(FACTORS)}, or a warm-up as in "
                "'hora plan', such as iteration:2."
            )
        found[name] = Factor(name=name, warmup=str(warmup))
    return tuple(found.values())


def scaled_decay(decay: Decay, ratio: float) -> Decay:
    """The same decay in a run that is ``ratio`` times as long.

    >>> str(scaled_decay(parse_decay("30,60,80"), 0.1)), str(scaled_decay(parse_decay("every:30"), 0.5))
    ('3,6,8', 'every:15')
    """
    match decay.kind:
        case "steps":
            return decay._replace(steps=tuple((round(at * ratio, 6), factor) for at, factor in decay.steps))
        case "every":
            return decay._replace(number=decay.number * ratio)
        case "exponential":
            return decay._replace(number=decay.number ** (1 / ratio))
    return decay


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker trains, and from it how many do."""

    workload: str
    epochs: float
    given: Mapping[str, Any]  # options of `hora train`, by field name

    @classmethod
    def of(cls, workload: str, given: Mapping[str, Any], epochs: float | None = None) -> Recipe:
        """Checked; ``epochs`` None are the workload's own, and a decay that is not given is stretched to them.

        >>> Recipe.of("cifar10", {}, 8).given["decay"]
        '4.1:0.125,6.1:0.025,7.1:0.005'
        >>> Recipe.of("mnist", {"warmup": "gradual:2"})
        Traceback (most recent call last):
        hora.errors.UsageError: --set warmup=gradual:2: that is what is changed here, factor by factor. Leave it ...
        """
        kind = options_of(workload)
        for name in ("rule", "warmup", "seed", "emulate_workers"):
            if name in given:
                raise UsageError(
                    f"--set {name}={given[name]}: that is what is changed here, factor by factor. Leave it out, and "
                    "see --factors, --workers and --seeds."
                )
        usual = kind.of({**given, "warmup": "none"})
        chosen = usual.epochs if epochs is None else epochs
        whole = kind.of({name: value for name, value in given.items() if name != "epochs"})
        decay = usual.decay
        if "decay" not in given:
            decay = str(scaled_decay(parse_decay(whole.decay), chosen / whole.epochs))
        made = cls(workload=workload, epochs=chosen, given={**given, "epochs": chosen, "decay": decay})
        made.options(BASELINE, 1)
        return made

    def options(self, factor: Factor, workers: int) -> WorkloadOptions:
        """The options of `hora train` for this factor on this many workers.

        >>> recipe = Recipe.of("imagenet", {}, 9)
        >>> [recipe.options(FACTORS[name], 32).plan(1_281_167, 32).peak_lr for name in ("naive", "linear")]
        [0.05, 1.6]
        >>> recipe.options(FACTORS["reduced-batch"], 32).batch, recipe.options(FACTORS["gradual10"], 32).warmup
        (32, 'horovod:1')
        """
        return options_of(self.workload).of(self.changes(factor, workers))

    def changes(self, factor: Factor, workers: int) -> dict[str, Any]:
        """The same, only what is not the workload's default."""
        one = options_of(self.workload).of({**self.given, "warmup": "none", "rule": "linear"})
        changed: dict[str, Any] = {"rule": "linear", "warmup": factor.warmup_in(self.epochs) if workers > 1 else "none"}
        if not factor.scaled:
            changed |= {"rule": "none", "lr": one.plan(1 << 40, 1).one_worker_lr}
        if factor.parts > 1:
            changed["batch"] = max(1, one.batch // factor.parts)
        return {**self.given, **changed}
