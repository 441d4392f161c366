"""The two networks that MNIST is usually trained with."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["HorovodNet", "TensorFlowNet", "network"]


class TensorFlowNet(nn.Module):
    """The CNN of tensorflow/models (official/mnist), with TensorFlow's initial weights.

    >>> sum(parameter.numel() for parameter in TensorFlowNet().parameters())
    3274634
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(7 * 7 * 64, 1024)
        self.fc2 = nn.Linear(1024, 10)
        for layer in (self.conv1, self.conv2, self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(F.dropout(x, 0.4, self.training))
        return logits


class HorovodNet(nn.Module):
    """The small CNN of Horovod's pytorch_mnist.py. (Its log-softmax is part of the loss here.)

    >>> sum(parameter.numel() for parameter in HorovodNet().parameters())
    21840
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), 0.5, self.training), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(F.dropout(x, 0.5, self.training))
        return logits


def network(name: str) -> nn.Module:
    """The network of that name."""
    return HorovodNet() if name == "horovod" else TensorFlowNet()
