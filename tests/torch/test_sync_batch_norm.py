"""SyncBatchNorm in one process. That N ranks equal one is in tests/multi/bodies/sync_batch_norm.py."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import hora.torch as hvd


def test_evaluation_needs_no_init() -> None:
    layer, plain = hvd.SyncBatchNorm(3).eval(), torch.nn.BatchNorm1d(3).eval()
    batch = torch.randn(4, 3)
    assert torch.equal(layer(batch), plain(batch))


def test_training_does() -> None:
    with pytest.raises(hvd.NotInitializedError):
        hvd.SyncBatchNorm(3)(torch.randn(4, 3))


def test_conversion_keeps_what_the_layer_has() -> None:
    plain = torch.nn.BatchNorm2d(3, eps=0.5, momentum=None).eval()
    plain.register_forward_hook(lambda module, args, output: output + 1)
    layer = hvd.SyncBatchNorm.convert_sync_batchnorm(plain)
    assert isinstance(layer, hvd.SyncBatchNorm) and not layer.training
    assert layer.weight is plain.weight and layer.running_mean is plain.running_mean
    batch = torch.randn(2, 3, 4, 4)
    assert torch.equal(layer(batch), plain(batch))
    assert list(layer.state_dict()) == list(torch.nn.BatchNorm2d(3).state_dict())


def test_what_is_no_batch_norm_is_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.InstanceNorm2d(3), torch.nn.Sequential(torch.nn.BatchNorm1d(2)))
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model and isinstance(model[0], torch.nn.InstanceNorm2d)
    assert isinstance(model[1][0], hvd.SyncBatchNorm)


def test_a_lazy_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="Run one batch through the model first"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(torch.nn.LazyBatchNorm1d()))


def test_copies_share_the_process_set_and_files_hold_its_ranks() -> None:
    some = hvd.ProcessSet([0, 2])
    layer = hvd.SyncBatchNorm(3, process_set=some)
    assert "process_set=ProcessSet([0, 2])" in repr(layer)
    assert copy.deepcopy(layer).process_set is some
    loaded = pickle.loads(pickle.dumps(layer))
    assert loaded.process_set == some and loaded.process_set is not some
