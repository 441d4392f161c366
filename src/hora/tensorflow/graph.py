"""How a collective is carried out, eagerly and inside a graph.

Eagerly it is a call. In a graph it is two operations that call Python (``tf.numpy_function``, which hands over tensors
as arrays over the same memory, both ways): one begins the collective and never waits, the other waits for its result.

TensorFlow's threads are few, and one that waits does nothing else. If ranks reach independent collectives in different
orders, each could wait for one that the other has not begun, because its thread is waiting. So nothing is waited for in
a ``tf.function`` before all collectives that do not depend on its result have begun: see ``_begin_all_first``.

An operation of a graph is named when it is traced, by the user or after the function and a counter: the same on all
ranks that trace the same code. Retracing gives the same names again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hora.engine.core import submitted_from
from hora.ops.host import Array
from hora.ops.started import Started
from hora.tensorflow.adapter import as_array, as_tensor, like

__all__ = ["Start", "after_all", "carry", "now", "traced_name"]

Start = Callable[[Sequence[Array]], Started[list[Array]]]
"""Begins a collective on arrays; what it gives has a list of arrays for its result."""

_LIBRARIES = tuple(str(Path(file).parent) + "/" for file in (str(Path(__file__).parent), tf.__file__))

_numbers = itertools.count()
_under_way: dict[int, Started[list[Array]]] = {}


def traced_name(kind: str, name: str | None) -> str | None:
    """The name to submit under: the given one, eagerly; in a graph one that no other operation in it has."""
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph  # branches and bodies of loops are graphs, whose own names differ between ranks
    if name is None:
        name = str(getattr(graph, "name", "graph")).rstrip("0123456789").rstrip("_")
    names: Counter[str] = _kept(graph, "_hora_names", Counter)
    key = f"{kind}.{name}"
    number = names[key]
    names[key] += 1
    return f"{name}_{number}" if number else name


def carry(start: Start, tensors: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Carry a collective out on the tensors; its results are tensors of these types and, in a graph, shapes.

    What is known of the shapes matters only in a graph, where the others' rows are not known yet.
    """
    if tf.executing_eagerly():
        results = start([as_array(tensor) for tensor in tensors]).result()
        return [like(as_tensor(result), tensors[0]) for result in results]

    def begin(*arrays: Any) -> Any:
        number = next(_numbers)
        with submitted_from(line):  # found below
            _under_way[number] = start([np.asarray(array) for array in arrays])
        return np.int64(number)

    def end(number: Any) -> Any:
        return _under_way.pop(int(number)).result()

    ticket = tf.numpy_function(begin, list(tensors), tf.int64, name="hora_begin")
    ticket.set_shape([])
    line = _user_line(ticket.op)
    results = tf.numpy_function(end, [ticket], list(dtypes), stateful=False, name="hora_wait")
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    _begin_all_first(ticket.op, results[0].op)
    return list(results)


def now(function: Callable[[], int]) -> Any:
    """What the function gives when this is executed, not when it is traced, as an int32 tensor."""
    if tf.executing_eagerly():
        return tf.constant(function(), tf.int32)
    result = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, name="hora_now")
    result.set_shape([])
    return result


def after_all(function: Callable[[], int]) -> Any:
    """The same, once all collectives that this graph has begun are over."""
    if tf.executing_eagerly():
        return now(function)
    with tf.control_dependencies(list(_waits(tf.compat.v1.get_default_graph()))):
        return now(function)


def _user_line(operation: Any) -> str:
    """The line of the user's code that an operation comes from; TensorFlow knows it also of code that it rewrote."""
    for frame in reversed(operation.traceback or ()):
        if not frame.filename.startswith(_LIBRARIES):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "?"


def _begin_all_first(begun: Any, wait: Any) -> None:
    """Let earlier waits of this function stand behind the beginning of this collective, where that makes no circle.

    A wait is an operation without state, because TensorFlow executes those that have one in the order of the program:
    the next collective would begin after it. So that it runs even if nobody uses its result, the function's end is
    made to depend on it. In a graph for sessions nothing is added: there only what is asked for is to run.
    """
    waits = _waits(wait.graph)
    must_run = getattr(wait.graph, "control_outputs", None)
    if must_run is not None:
        for earlier in waits:
            if earlier._control_flow_context is begun._control_flow_context and not _has_effects(earlier):
                earlier._add_control_input(begun)
        must_run.append(wait)
    waits.append(wait)


def _waits(graph: Any) -> list[Any]:
    """The operations that wait in this graph, in the order of the program."""
    waits: list[Any] = _kept(graph, "_hora_waits", list)
    return waits


def _kept(graph: Any, name: str, make: Callable[[], Any]) -> Any:
    """What is remembered of a graph, in the graph: so it lives as long."""
    if not hasattr(graph, name):
        setattr(graph, name, make())
    return getattr(graph, name)


def _has_effects(operation: Any) -> bool:
    """Whether anything with a state depends on the operation: what is traced later may depend on that, in turn."""
    seen, queue = {operation}, [operation]
    while queue:
        current = queue.pop()
        after = [user for output in current.outputs for user in output.consumers()] + current._control_outputs
        for user in after:
            if user._is_stateful:
                return True
            if user not in seen:
                seen.add(user)
                queue.append(user)
    return False
