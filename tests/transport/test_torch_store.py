"""The hub's store through the eyes of torch, which calls it from C++."""

from __future__ import annotations

from datetime import timedelta

import pytest

dist = pytest.importorskip("torch.distributed")
from tests.transport.test_gloo import Store  # noqa: E402

from hora.errors import HorovodInternalError  # noqa: E402
from hora.transport.torch_store import TorchStore  # noqa: E402


def test_keys_are_under_the_prefix_and_values_are_bytes() -> None:
    kept = Store()
    store = TorchStore(kept, "nccl/0.1/", 5.0)
    seen_by_torch = dist.PrefixStore("p", store)
    seen_by_torch.set("id", "text")
    assert kept.get("nccl/0.1/p/id", 0.0) == b"text" == seen_by_torch.get("id")
    seen_by_torch.wait(["id"], timedelta(seconds=1))
    with pytest.raises(HorovodInternalError, match=r"within 0\.1 s"):
        store.wait(["never"], timedelta(seconds=0.1))


def test_whether_a_key_is_set_is_answered_without_asking() -> None:
    """NCCL's monitor asks every second for a key that nobody sets."""
    store = TorchStore(Store(), "", 5.0)
    seen_by_torch = dist.PrefixStore("p", store)
    assert not seen_by_torch.check(["id"])
    seen_by_torch.set("id", "1")
    assert seen_by_torch.check(["id"]) and not seen_by_torch.check(["id", "exception_dump"])
    assert store.clone() is store
