"""Choosing images so that every class keeps its share."""

from __future__ import annotations

import torch
from torch import Tensor


def stratified(labels: Tensor, count: int, seed: int, *, least: int = 0, left: int = 0) -> Tensor:
    """Positions of ``count`` labels, in order, with the classes in the proportions of ``labels``.

    Where there are enough, every class gives at least ``least`` and keeps ``left`` of its own; a
    smaller number is chosen where the classes cannot give ``count``.
    """
    generator = torch.Generator().manual_seed(seed)
    classes, sizes = labels.cpu().unique(return_counts=True)
    shares = _shares(sizes.tolist(), count, least, left)
    chosen = []
    for label, share in zip(classes.tolist(), shares, strict=True):
        members = (labels.cpu() == label).nonzero().flatten()
        chosen.append(members[torch.randperm(len(members), generator=generator)[:share]])
    return torch.cat(chosen).sort().values


def _shares(sizes: list[int], count: int, least: int, left: int) -> list[int]:
    """How many each class gives: in proportion, whole numbers, ``count`` in total."""
    total = sum(sizes)
    most = [max(size - left, 0) for size in sizes]
    fewest = [min(least, size) for size in most] if count >= least * len(sizes) else [0] * len(most)
    ideal = [size * count / total for size in sizes]
    shares = [
        min(max(int(share), low), high)
        for share, low, high in zip(ideal, fewest, most, strict=True)
    ]
    positions = range(len(sizes))
    for _ in range(sum(shares), min(count, sum(most))):
        free = [i for i in positions if shares[i] < most[i]]
        shares[max(free, key=lambda i: ideal[i] - shares[i])] += 1
    for _ in range(sum(shares) - count):
        free = [i for i in positions if shares[i] > fewest[i]]
        shares[max(free, key=lambda i: shares[i] - ideal[i])] -= 1
    return shares
