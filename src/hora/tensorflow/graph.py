"""How a collective is carried out, eagerly and inside a graph.

Eagerly it is a call. In a graph it is two operations that call Python (``tf.numpy_function``, which hands over tensors
as arrays over the same memory, both ways): one begins the collective and never waits, the other waits for its result.

TensorFlow's threads are few, and one that waits does nothing else. If ranks reach independent collectives in different
orders, each could wait for one that the other has not begun, because its thread is waiting. A ``tf.function`` begins
its collectives in the order of the program, and waits for nothing before all that do not depend on its result have
begun: see ``_begin_all_first``. A session knows no such order, and what it will run is not known beforehand. There none
of TensorFlow's threads waits: see ``_aside``.

An operation of a graph is named when it is traced, by the user or after the function and a counter: the same on all
ranks that trace the same code. Retracing gives the same names again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hora.engine.backend import UnderWay
from hora.engine.core import submitted_from
from hora.ops.host import Array
from hora.tensorflow.adapter import as_array, as_tensor, like

__all__ = ["Start", "after_all", "carry", "in_session", "now", "traced_name"]

Start = Callable[[Sequence[Array]], UnderWay[list[Array]]]
"""Begins a collective on arrays; what it gives has a list of arrays for its result."""

_LIBRARIES = tuple(str(Path(file).parent) + "/" for file in (str(Path(__file__).parent), tf.__file__))

_numbers = itertools.count()
_under_way: dict[int, Callable[[], list[Any]]] = {}  # what waits for it


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
        results = start([as_array(tensor) for tensor in tensors]).wait()
        return [like(as_tensor(result), tensors[0]) for result in results]

    def begin(*arrays: Any) -> Any:
        number = next(_numbers)
        with submitted_from(line):  # found below
            _under_way[number] = start([np.asarray(array) for array in arrays]).wait
        return np.int64(number)

    ticket = tf.numpy_function(begin, list(tensors), tf.int64, name="hora_begin")
    ticket.set_shape([])
    line = _user_line(ticket.op)
    outputs = _wait(ticket, dtypes)
    for output, shape in zip(outputs, shapes, strict=True):
        output.set_shape(shape)
    _begin_all_first(ticket.op, outputs[0].op)
    return outputs


def now(function: Callable[[], int]) -> Any:
    """What the function gives when this is executed, not when it is traced, as an int32 tensor."""
    if tf.executing_eagerly():
        return tf.constant(function(), tf.int32)
    result = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, name="hora_now")
    result.set_shape([])
    return result


def after_all(function: Callable[[], int]) -> Any:
    """The same, once all collectives that this function has begun are over; in a session that is the caller's affair.

    The function may wait for other ranks.
    """
    if tf.executing_eagerly():
        return now(function)
    if not _for_session():
        with tf.control_dependencies(list(_waits(tf.compat.v1.get_default_graph()))):
            return now(function)

    def begin() -> Any:
        number = next(_numbers)
        _under_way[number] = lambda: [np.int32(function())]
        return np.int64(number)

    (result,) = _wait(tf.numpy_function(begin, [], tf.int64, name="hora_begin"), [tf.int32])
    result.set_shape([])
    return result


def in_session() -> bool:
    """Whether a session runs what is traced now, and only if it is asked for; what is in a function runs with it."""
    return not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function


def _for_session() -> bool:
    """The same, or in a function of a graph that is run by a session: its threads are the session's."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def _wait(ticket: Any, dtypes: Sequence[Any]) -> list[Any]:
    """The operation that has the result of what is under way.

    In a function it has no state: see ``_begin_all_first``. In a session it has, lest TensorFlow leaves it out where it
    must only have run.
    """

    def end(number: Any) -> Any:
        return _under_way.pop(int(number))()

    ticket = _aside(ticket) if _for_session() else ticket
    results = tf.numpy_function(end, [ticket], list(dtypes), stateful=in_session(), name="hora_wait")
    return list(results)


def _aside(ticket: Any) -> Any:
    """The ticket, once what is under way is over: waited for on a thread of its own, while TensorFlow's go on.

    An operation that takes the only element of a data set is one of the few that hold no thread of the session's while
    they are not done; and the element is computed by what the data set has in place of the session's threads. It takes
    half a millisecond, so it is not for functions, which have an order.
    """

    graph = ticket.graph
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    with graph.as_default():
        settled = _kept(graph, "_hora_settled", _settled)
    (ticket,) = tf.raw_ops.PartitionedCall(args=[ticket], Tout=[tf.int64], f=settled)
    return ticket


def _settled() -> Any:
    """The function that does it. It is called as one without a state, or calls of it would be put in an order."""

    def settle(number: Any) -> Any:
        settled: Future[list[Any]] = Future()
        try:
            settled.set_result(_under_way[int(number)]())
        except BaseException as error:
            settled.set_exception(error)
        _under_way[int(number)] = settled.result
        return number

    def single(ticket: Any) -> Any:
        element = {"output_types": [tf.int64], "output_shapes": [tf.TensorShape([])]}
        over = tf.data.Dataset.from_tensors(ticket).map(lambda number: tf.numpy_function(settle, [number], tf.int64))
        variant = tf.raw_ops.PrivateThreadPoolDataset(
            input_dataset=tf.data.experimental.to_variant(over), num_threads=tf.constant(1, tf.int64), **element
        )
        return tf.raw_ops.DatasetToSingleElement(dataset=variant, **element)[0]

    return tf.function(single).get_concrete_function(tf.TensorSpec([], tf.int64))


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
