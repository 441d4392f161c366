"""What runs when autograd has computed a gradient: once for each parameter and pass, so every line counts.

One kind of hook for each way a gradient travels: into a bucket of its own type (``into_view``), into one of a smaller
type (``into_cast``), or alone. ``again`` is called for a gradient that comes before the last one was taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hora.torch.bucket import Bucket, GradientEntry

__all__ = ["Hook", "cast", "into_cast", "into_view", "put", "unbucketed"]

Hook = Callable[[torch.Tensor], None]
Again = Callable[[GradientEntry, torch.Tensor], None]


def into_view(entry: GradientEntry, bucket: Bucket, submit: Callable[[Bucket], None], again: Again) -> Hook:
    """Copies the gradient to its place in the bucket while it is in the cache, and sets ``param.grad`` to that."""
    view = bucket.views[entry.place]
    copy = view.copy_

    def fire(parameter: torch.Tensor) -> None:
        left = entry.left = entry.left - 1
        if left:
            if left < 0:
                again(entry, parameter)
            return
        grad = parameter.grad
        if grad is not view:
            try:
                parameter.grad = view  # checks the type, the shape and the device
                copy(grad if not grad.requires_grad else grad.detach())  # type: ignore[union-attr, arg-type]
            except RuntimeError:
                does_not_fit(entry, grad)
        left = bucket.left = bucket.left - 1
        if not left:
            submit(bucket)

    return fire


def into_cast(entry: GradientEntry, bucket: Bucket, submit: Callable[[Bucket], None], again: Again) -> Hook:
    """Copies the gradient to a bucket of another type; ``param.grad`` stays what it is."""

    def fire(parameter: torch.Tensor) -> None:
        entry.left -= 1
        if entry.left:
            if entry.left < 0:
                again(entry, parameter)
            return
        cast(entry, bucket)
        bucket.left -= 1
        if not bucket.left:
            submit(bucket)

    return fire


def unbucketed(entry: GradientEntry, send: Callable[[GradientEntry], None], again: Again) -> Hook:
    """Sends the gradient at once."""

    def fire(parameter: torch.Tensor) -> None:
        entry.left -= 1
        if entry.left:
            if entry.left < 0:
                again(entry, parameter)
            return
        send(entry)

    return fire


def cast(entry: GradientEntry, bucket: Bucket) -> None:
    """Put a gradient into a bucket of another type."""
    grad = entry.kept = entry.parameter.grad
    view = bucket.views[entry.place]
    assert grad is not None
    if grad.layout is not torch.strided or grad.shape != view.shape or grad.device != view.device:
        bucket.mark_odd(entry.place)
    else:
        view.copy_(grad.detach())


def put(entry: GradientEntry, bucket: Bucket) -> None:
    """Put a gradient that no hook did into a bucket of its own type."""
    view, grad = bucket.views[entry.place], entry.parameter.grad
    assert grad is not None
    if grad is not view:
        try:
            entry.parameter.grad = view
            view.copy_(grad.detach())
        except RuntimeError:
            does_not_fit(entry, grad)


def does_not_fit(entry: GradientEntry, grad: torch.Tensor | None) -> None:
    """A gradient of another type or shape than its bucket: the parameter has changed since."""
    entry.parameter.grad = entry.kept = grad
    assert entry.bucket is not None
    entry.bucket.mark_odd(entry.place)
