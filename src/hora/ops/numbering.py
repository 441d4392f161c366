"""Names for what has none: layers, optimizers and other owners of collectives, one name each, the same on all ranks.

An owner gets the next number of its kind when it first asks. Optimizers ask when they are made. Layers ask when they
first communicate: ranks may build different layers (a model that only rank 0 evaluates), but they have to communicate
in the same order. Numbers are counted afresh in every generation, and for every process set by itself, so that whoever
comes later counts like the others. Copies of an owner are owners of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from weakref import WeakKeyDictionary

from hora.engine import session
from hora.engine.core import Engine
from hora.engine.process_set import ProcessSet

__all__ = ["name_of", "name_of_key"]


class _Names:
    def __init__(self) -> None:
        self.given: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self.keyed: dict[tuple[object, ...], str] = {}
        self.count: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def next(self, kind: str, process_set: ProcessSet) -> str:
        key = kind, process_set.members
        self.count[key] += 1
        return f"{kind}.{self.count[key] - 1}"


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
    names = _names()
    name = names.given.get(owner)
    if name is None:
        name = names.given[owner] = names.next(kind, process_set)
    return name


def name_of_key(key: Hashable, kind: str, process_set: ProcessSet) -> str:
    """The same for what has no owner, but is known by a key that is the same on all ranks."""
    names, whole = _names(), (key, kind, process_set.members)
    name = names.keyed.get(whole)
    if name is None:
        name = names.keyed[whole] = names.next(kind, process_set)
    return name


def _names() -> _Names:
    engine = session.engine()
    names = _generations.get(engine)
    if names is None:
        names = _generations[engine] = _Names()
    return names
