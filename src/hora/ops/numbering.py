"""Names for what has none: layers, optimizers and other owners of collectives, one name each, the same on all ranks.

An owner gets the next number of its kind when it first asks. Optimizers ask when they are made. Layers ask when they
first communicate: ranks may build different layers (a model that only rank 0 evaluates), but they have to communicate
in the same order. Numbers are counted afresh in every generation, and for every process set by itself, so that whoever
comes later counts like the others. Copies of an owner are owners of their own.
"""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

from hora.engine import session
from hora.engine.core import Engine
from hora.engine.process_set import ProcessSet

__all__ = ["name_of"]


class _Names:
    def __init__(self) -> None:
        self.given: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self.count: Counter[tuple[str, tuple[int, ...]]] = Counter()


_generations: WeakKeyDictionary[Engine, _Names] = WeakKeyDictionary()


def name_of(owner: object, kind: str, process_set: ProcessSet) -> str:
    """The name of an owner: given when it is first asked for, kept as long as the owner lives.

    >>> from hora.engine.process_set import global_process_set
    >>> class Layer: ...
    >>> session.init()
    >>> a, b = Layer(), Layer()
    >>> name_of(b, "layer", global_process_set), name_of(a, "layer", global_process_set)
    ('layer.0', 'layer.1')
    >>> name_of(b, "layer", global_process_set)
    'layer.0'
    >>> session.shutdown()
    """
    engine = session.engine()
    names = _generations.get(engine)
    if names is None:
        names = _generations[engine] = _Names()
    name = names.given.get(owner)
    if name is None:
        key = kind, process_set.members
        name = names.given[owner] = f"{kind}.{names.count[key]}"
        names.count[key] += 1
    return name
