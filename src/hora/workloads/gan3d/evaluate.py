"""What is found out after an epoch, on test events. Every rank takes its share of them.

Random numbers are the same after every epoch and on any number of workers, so that results compare.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

import hora.torch as hvd
from hora.workloads.gan3d.analysis import Errors, errors, near_a_bin, shapes, tally
from hora.workloads.gan3d.data import GEV, ShowerDataset
from hora.workloads.gan3d.game import TrainedGan
from hora.workloads.gan3d.history import NETWORKS, Losses
from hora.workloads.gan3d.losses import PARTS, sample, weighted
from hora.workloads.gan3d.model import Judgement
from hora.workloads.metrics import shard
from hora.workloads.order import random_seed

__all__ = ["analyse", "losses_on"]

_TEST, _ANALYSIS = 0x7E57, 0xA7A1  # set their random numbers apart from others of the same seed


def losses_on(game: TrainedGan, showers: ShowerDataset, autocast: AbstractContextManager[Any]) -> Losses:
    """The losses on test events, all or the first few: the discriminator's on them and on as many generated
    ones, the generator's on twice as many."""
    options = game.options
    events = min(options.test_events or len(showers), len(showers))
    noise, energy = sample(3 * events, options.latent, _stream(options.seed, _TEST))
    sums = torch.zeros(len(NETWORKS), len(PARTS), dtype=torch.float64)
    for indices in shard(events, options.batch):
        batch, mine = showers.batch(indices), torch.from_numpy(indices)
        ones, zeros = torch.ones(len(mine)), torch.zeros(len(mine))
        with autocast:
            losses = [game.examined(batch.showers, Judgement(ones, batch.energy, batch.ecal))]
            for part, labels in enumerate((zeros, ones, ones)):
                at = mine + part * events
                losses.append(game.examined(game.generated(noise[at]), game.wanted(labels, energy[at])))
        judging, deceiving = torch.cat(losses[:2]), torch.cat(losses[2:])
        sums += torch.stack([deceiving.sum(0), judging.sum(0)]).double().cpu()
    means = hvd.allreduce(sums, op=hvd.Sum, name="test") / (2 * events)  # Hora 5
    totals = weighted(means, options.loss_weights)
    return {name: [float(total), *row.tolist()] for name, total, row in zip(NETWORKS, totals, means, strict=True)}


def analyse(
    game: TrainedGan, showers: ShowerDataset, autocast: AbstractContextManager[Any]
) -> tuple[Errors | None, list[Any]]:
    """How much generated showers look like the test events of their energy, None if none is near a bin's middle; and
    the shapes of both."""
    options, energy_gev = game.options, showers.energy_gev
    near = np.flatnonzero(near_a_bin(torch.from_numpy(energy_gev)).numpy())
    noise, _ = sample(len(near), options.latent, _stream(options.seed, _ANALYSIS))
    sums = tally(torch.empty(0, 25, 25, 25), torch.empty(0, 25, 25, 25), torch.empty(0))
    for places in shard(len(near), options.batch):
        batch = showers.batch(near[places])
        with autocast:
            generated = game.generated(batch.energy[:, None] * noise[torch.from_numpy(places)])
        sums += tally(batch.showers[:, 0], generated[:, 0].cpu(), batch.energy * GEV)
    sums = hvd.allreduce(sums, op=hvd.Sum, name="analysis")
    return errors(sums), shapes(sums)


def _stream(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(random_seed(*numbers))
