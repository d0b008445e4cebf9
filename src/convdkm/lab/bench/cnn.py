"""The network that has the same convolutions as the machine: the floor of what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv(before: int, after: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


class _Block(nn.Module):
    """Two convolutions and the way round them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _conv(before, after, 3, stride), _conv(after, after)
        changes = before != after or stride != 1
        self.shortcut = _conv(before, after, 1, stride) if changes else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        body: Tensor = self.second(torch.relu_(self.first(maps)))
        body += self.shortcut(maps)
        return torch.relu_(body)


class ResNet(nn.Module):
    """A residual network of the shape of ``convdkm.resnet``.

    The convolutions are those of the machine, one for one: that of the input patches, that of the
    stem, two for each block, and one of size 1 where a block changes the shape. Batch
    normalisation follows each, and a ReLU each but the shortcuts'. What can be done in place is.

    Args:
        in_channels: channels of the images.
        num_classes: number of classes.
        widths: channels of every stage.
        blocks: residual blocks of every stage.
        strides: of the first block of every stage.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int],
        blocks: Sequence[int] = (3, 3, 3),
        strides: Sequence[int] = (2, 2, 2),
    ) -> None:
        super().__init__()
        self.input, self.stem = _conv(in_channels, widths[0]), _conv(widths[0], widths[0])
        stages: list[nn.Module] = []
        before = widths[0]
        for after, count, stride in zip(widths, blocks, strides, strict=True):
            stages.append(_Block(before, after, stride))
            stages.extend(_Block(after, after, 1) for _ in range(count - 1))
            before = after
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = torch.relu_(self.stem(torch.relu_(self.input(images))))
        logits: Tensor = self.head(self.stages(maps).mean((2, 3)))
        return logits
