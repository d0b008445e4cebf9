r"""What a machine has learned, layer by layer: kernels, learned Grams, divergences, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from convdkm.insight.instruments import Meter, scale_part, whitening_of
from convdkm.insight.similarity import FEWEST, cka, class_kernel, cluster_order
from convdkm.insight.walk import Place, first_blocks, gram_leaves, taken_apart
from convdkm.layers.gram_layer import GramLayer
from convdkm.model import DeepKernelMachine
from convdkm.ops.base import Blocks


@dataclass(frozen=True, eq=False)
class LayerInsight:
    r"""One Gram layer: the kernel that comes in, the Gram that was learned, and what it cost.

    Attributes:
        name: as in ``model.named_modules()``.
        kernel: :math:`K_{ii}`, float64.
        gram: :math:`G_{ii}`, float64.
        nu: ν, the weight of the divergence.
        kl: :math:`D_{KL}(N(0,G_{ii})\|N(0,K_{ii}))` in nats; 0 where ν is infinite and G = K.
        stretches: eigenvalues of :math:`K_{ii}^{-1}G_{ii}`, largest first: how much every
            direction of the kernel was stretched.
        explained, spread: share of the variance of data that the inducing points explain, and how
            much correlations with inducing points differ from image to image; see
            :class:`convdkm.insight.Reading`. None without images.
        kernel_alignment, gram_alignment: CKA of the kernel and of the learned Gram with the
            classes; None without labelled images.
        taylor: whether the divergence is taken to second order.
    """

    name: str
    kernel: Tensor
    gram: Tensor
    nu: float
    kl: float
    stretches: Tensor
    explained: float | None = None
    spread: float | None = None
    kernel_alignment: float | None = None
    gram_alignment: float | None = None
    taylor: bool = False

    @property
    def num_inducing(self) -> int:
        """:math:`P_i`."""
        return len(self.gram)

    @cached_property
    def kernel_spectrum(self) -> Tensor:
        """Eigenvalues of K_ii, largest first."""
        return _spectrum(self.kernel)

    @cached_property
    def gram_spectrum(self) -> Tensor:
        """Eigenvalues of G_ii, largest first."""
        return _spectrum(self.gram)

    @property
    def kernel_rank(self) -> float:
        """Effective rank of K_ii."""
        return effective_rank(self.kernel_spectrum)

    @property
    def gram_rank(self) -> float:
        """Effective rank of G_ii."""
        return effective_rank(self.gram_spectrum)

    @property
    def scale(self) -> float:
        """Mean variance under G_ii over mean variance under K_ii."""
        return float(self.gram.diagonal().mean() / self.kernel.diagonal().mean())

    @property
    def scale_kl(self) -> float:
        """The part of the KL that a change of overall scale costs."""
        return min(scale_part(self.stretches, taylor=self.taylor), self.kl)

    @property
    def shape_kl(self) -> float:
        """The rest of the KL: what the change of shape costs."""
        return max(self.kl - self.scale_kl, 0.0)

    @cached_property
    def order(self) -> list[int]:
        """Inducing points in an order that shows their clusters under G_ii."""
        return cluster_order(self.gram)


@dataclass(frozen=True, eq=False)
class Insight:
    r"""A machine looked into.

    Attributes:
        layers: its Gram layers, in the order of the data.
        head_kl: divergence of the head, as it enters the objective.
        num_images: images that the figures of data come from.
        names: what is compared in ``similarity``: the input, every Gram layer, the top, the
            classes.
        similarity: CKA between them; None without images.
        unseen: Gram layers inside layers of the user's own, which are not looked into.
    """

    layers: list[LayerInsight]
    head_kl: float
    num_images: int = 0
    names: list[str] = field(default_factory=list)
    similarity: Tensor | None = None
    unseen: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Short names of the layers, for tables and charts."""
        return short_names([layer.name for layer in self.layers])


@torch.no_grad()
def look_into(
    model: DeepKernelMachine,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    *,
    batch_size: int = 32,
) -> Insight:
    r"""Look into a machine, layer by layer.

    The similarity of layers is that of images under their Grams, averaged over places: with
    :math:`G_{ii} = FF^T`, image p has the features
    :math:`\bar u_p = \tfrac1S\sum_s F^{-1}G_{i,ps}`, two images the kernel
    :math:`\bar u_p\cdot\bar u_q`, and two layers the CKA of their kernels.

    Args:
        model: the machine, trained or initialised.
        images: some (whitened) images or vectors, a few hundred; without them there are only the
            figures that need no data.
        labels: their classes.
        batch_size: images at a time.
    """
    count = 0 if images is None else len(images)
    with taken_apart(model) as root:
        plan = model.plan()
        head_kl = plan.head_kl.expand(model.head.num_outputs)
        paid = float(head_kl.sum() if model.head_kl == "sum" else head_kl.mean())
        first, last = _Features(model.input.inducing_block()), _Features(root.ii)
        before = {leaf: _Features(leaf.incoming) for leaf in gram_leaves(root)}
        after = {leaf: _Features(leaf.ii) for leaf in before}
        meters = {leaf: Meter(before[leaf].whitening, leaf.ii) for leaf in before}
        seen = {leaf.name for leaf in before}
        unseen = tuple(name for name in plan.kl if name not in seen)

        def visit(place: Place, incoming: Blocks, outgoing: Blocks) -> None:
            if place in meters:
                before[place].add(incoming[0])
                after[place].add(outgoing[0])
                meters[place].see(incoming, outgoing)

        for batch in images.split(batch_size) if images is not None and count else ():
            blocks = first_blocks(model, batch)
            first.add(blocks[0])
            last.add(root.data(blocks, visit)[0])
    classes, kernels = None, dict[str, Tensor]()
    if count >= FEWEST:
        kernels["input"] = first.kernel()
        kernels |= {leaf.name: features.kernel() for leaf, features in after.items()}
        kernels["top"] = last.kernel()
        if labels is not None:
            classes = kernels["classes"] = class_kernel(labels.to(model.device))
    layers = []
    for leaf, meter in meters.items():
        assert isinstance(leaf.layer, GramLayer)
        whitening = before[leaf].whitening
        layers.append(
            LayerInsight(
                leaf.name,
                leaf.incoming.cpu(),
                leaf.ii.cpu(),
                leaf.layer.nu,
                leaf.kl,
                _spectrum(whitening @ leaf.ii @ whitening.T).cpu(),
                meter.explained,
                meter.spread,
                None if classes is None else cka(before[leaf].kernel(), classes),
                None if classes is None else cka(kernels[leaf.name], classes),
                leaf.layer.kl == "taylor",
            )
        )
    similarity = _similarities(list(kernels.values())) if kernels else None
    return Insight(layers, paid, count, list(kernels), similarity, unseen)


def effective_rank(spectrum: Tensor) -> float:
    r"""How many directions a matrix uses: :math:`\exp(-\sum_j p_j\log p_j)`.

    :math:`p_j` are its eigenvalues over their sum. It is P for a multiple of the identity, and 1
    for a matrix of rank one.
    """
    shares = spectrum.clamp(min=0)
    shares = shares / shares.sum()
    return float(torch.special.entr(shares).sum().exp())


def short_names(names: Sequence[str]) -> list[str]:
    """Names of layers without the parts that they all have, as long as they stay different.

    >>> short_names(["body.stem.gram", "body.stage1.block1.body.first.gram"])
    ['stem', 'stage1.block1.first']
    """
    short = []
    for name in names:
        parts = [part for part in name.split(".") if part != "body"]
        short.append(".".join(parts[:-1] if parts[-1:] == ["gram"] and parts[1:] else parts))
    return short if all(short) and len(set(short)) == len(short) else list(names)


class _Features:
    """Features of images under a Gram, averaged over places."""

    def __init__(self, ii: Tensor) -> None:
        self.whitening = whitening_of(ii)
        self.parts: list[Tensor] = []

    def add(self, it: Tensor) -> None:
        pooled = it.double().flatten(2).mean(2) if it.ndim > 2 else it.double()
        self.parts.append(pooled @ self.whitening.T)

    def kernel(self) -> Tensor:
        """The kernel between the images seen."""
        features = torch.cat(self.parts)
        return features @ features.T


def _similarities(kernels: list[Tensor]) -> Tensor:
    matrix = torch.eye(len(kernels), dtype=torch.float64)
    for (i, one), (j, other) in combinations(enumerate(kernels), 2):
        matrix[i, j] = matrix[j, i] = cka(one, other)
    return matrix


def _spectrum(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix).flip(0).clamp(min=0)
