"""``hora.jax`` is what the table says, its examples run, and it brings little with it."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import sys
from typing import Any

from hora.jax import collectives
from hora.ops.table import FUNCTIONS

# Arrays cannot be changed, and JAX's sparse ones are not gradients.
WANTED = {name for name, (_, form) in FUNCTIONS.items() if not form.in_place} - {"sparse_allreduce_async"}


def every_form_of_the_table(hvd: Any, rank: int, size: int) -> None:
    for name in WANTED:
        collective, form = FUNCTIONS[name]
        function = getattr(hvd, name)
        parameters = inspect.signature(function).parameters
        assert list(parameters) == [argument.name for argument in collective.parameters(form)], name
        assert function.__doc__.startswith(collective.summary), name
    defined = {
        name
        for name, value in vars(collectives).items()
        if inspect.isfunction(value) and value.__module__ == collectives.__name__ and not name.startswith("_")
    }
    assert defined == WANTED
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


def all_is_exactly_the_public_names(hvd: Any, rank: int, size: int) -> None:
    public = {name for name in dir(hvd) if not name.startswith("_") and not inspect.ismodule(getattr(hvd, name))}
    assert public - {"annotations", "Any", "TYPE_CHECKING"} == set(hvd.__all__)
    assert len(hvd.__all__) == len(set(hvd.__all__))
    assert not {"hora.torch", "hora.launch", "hora.cli", "hora.lab"} & set(sys.modules)


def examples(hvd: Any, rank: int, size: int) -> None:
    """Those of the docstrings; they are of a worker that is alone."""
    hvd.shutdown()
    run = 0
    for found in pkgutil.iter_modules(hvd.__path__, "hora.jax."):
        result = doctest.testmod(importlib.import_module(found.name), optionflags=doctest.ELLIPSIS)
        assert not result.failed, found.name
        run += result.attempted
    hvd.init()
    assert run > 20 and not doctest.testmod(hvd, optionflags=doctest.ELLIPSIS).failed
