r"""The whole machine: input, layers, head, likelihood, and the objective that ties them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from convdkm.checks import check_positive
from convdkm.choices import ViewsName
from convdkm.errors import GramError, InvalidInputError, NotFiniteError, located
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.head import GPHead, HeadPlan, Marginals
from convdkm.layers.base import Layer
from convdkm.layers.checkpointing import checkpointed
from convdkm.layers.compose import prefixed
from convdkm.layers.gram_layer import GramLayer
from convdkm.layers.input import Input
from convdkm.layers.norm import RunningStatistics
from convdkm.layers.samples import cast_samples
from convdkm.likelihoods import Likelihood
from convdkm.ops.base import LayerKL, Plan
from convdkm.ops.chain import apart
from convdkm.prediction import Prediction
from convdkm.runtime.compiled import compilable
from convdkm.runtime.elementwise import compiled_engine
from convdkm.runtime.maps import channels_last
from convdkm.runtime.memory import available_memory
from convdkm.views import Views

if TYPE_CHECKING:
    from convdkm.predicting.predictor import Predictor


JOINT_ENTRIES = 1 << 24
"""Covariances between images that are worked on at a time in joint predictions."""


@dataclass(frozen=True, eq=False)
class Objective:
    r"""The mini-batch objective of appendix D, per image, and its parts; to be maximised.

    .. math:: \mathcal L = \tfrac1B\sum_{p} E_Q[\log P(y_p|f_p)]
              - \tfrac1{N}\left[D_{KL}^{head} + \sum_\ell \nu_\ell D_{KL}^\ell\right]

    Attributes:
        expected_log_likelihood: mean over the batch, in nats.
        head_kl: divergence of the head's Q from its prior, as it enters the objective.
        kl: each Gram layer's divergence and weight, by the layer's name.
        num_data: N, the number of training images.
        marginals: of the top-layer functions at the batch.
    """

    expected_log_likelihood: Tensor
    head_kl: Tensor
    kl: dict[str, LayerKL]
    num_data: int
    marginals: Marginals

    @property
    def regulariser(self) -> Tensor:
        r""":math:`\sum_\ell \nu_\ell D_{KL}^\ell`, not yet divided by the number of images."""
        terms = [term.weighted for term in self.kl.values()]
        return torch.stack(terms).sum() if terms else torch.zeros_like(self.head_kl)

    @property
    def total(self) -> Tensor:
        """The objective itself."""
        return self.weighted(1.0)

    def weighted(self, factor: float | Tensor) -> Tensor:
        r"""The objective with :math:`\nu_\ell` times a factor in all layers."""
        penalty = (self.head_kl + factor * self.regulariser) / self.num_data
        return self.expected_log_likelihood - penalty

    def __repr__(self) -> str:
        def show(value: Tensor) -> str:
            return f"{float(value.detach()):.6g}"

        layers = ", ".join(f"{name}: {show(term.value)}" for name, term in self.kl.items())
        return (
            f"Objective(total={show(self.total)},"
            f" expected_log_likelihood={show(self.expected_log_likelihood)},"
            f" head_kl={show(self.head_kl)}, kl={{{layers}}}, num_data={self.num_data})"
        )


class ModelPlan:
    """A model whose inducing chain has been worked out: what is left needs data only."""

    def __init__(self, body: Plan, head: HeadPlan, kl: dict[str, LayerKL]) -> None:
        self.kl, self.head_kl = kl, head.kl
        split = head.split()
        absorbed = body.premultiplied(split[0]) if split is not None else None
        if split is not None and absorbed is not None:
            body, head = absorbed, split[1]
        self.body, self.head = body, head

    def marginals(self, it: Tensor, tt: Tensor, *, checkpointing: bool = False) -> Marginals:
        """Marginals from the first data blocks; see :attr:`DeepKernelMachine.checkpointing`."""
        with located("body"):
            if checkpointing and torch.is_grad_enabled():
                it, tt = checkpointed(self.body, it, tt)
            else:
                it, tt = self.body.data(it, tt)
        with located("head"):
            return self.head.marginals(it, tt)


class DeepKernelMachine(nn.Module):
    """A deep kernel machine: ``input → body → head → likelihood``.

    Args:
        input: makes the first Gram: :class:`PatchInput` or :class:`VectorInput`.
        body: Gram → Gram; its output has no space left.
        head: Gram → marginals of the top-layer functions.
        likelihood: how targets depend on those functions.
        head_kl: how the head's KL enters the objective: the ``"sum"`` over the outputs (the paper),
            or their ``"mean"`` (the published runs).
        dtype: precision of the data path, float32 by default; later changed by ``.to(dtype)``. The
            inducing chain is float64 always.

    Attributes:
        checkpointing: save memory in training: keep what enters each residual block, and work out
            the inside again in the backward pass. Off by default.
    """

    _precision: Tensor

    def __init__(
        self,
        input: Input,
        body: Layer,
        head: GPHead,
        likelihood: Likelihood,
        *,
        head_kl: str = "sum",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, value, kind in (
            ("input", input, Input),
            ("body", body, Layer),
            ("head", head, GPHead),
            ("likelihood", likelihood, Likelihood),
        ):
            if not isinstance(value, kind):
                raise InvalidInputError(f"{name} must be a {kind.__name__}, got {value!r}")
        if head_kl not in ("sum", "mean"):
            raise InvalidInputError(f"head_kl must be 'sum' or 'mean', got {head_kl!r}")
        if not dtype.is_floating_point:
            raise InvalidInputError(f"dtype must be a floating-point type, got {dtype}")
        if head.num_outputs != likelihood.num_outputs:
            raise InvalidInputError(
                f"the head has {head.num_outputs} outputs, the likelihood {likelihood.num_outputs}"
            )
        self.input, self.body, self.head, self.likelihood = input, body, head, likelihood
        self.head_kl = head_kl
        self.checkpointing = False
        self.register_buffer("_precision", torch.empty(0, dtype=dtype), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the data path."""
        return self._precision.dtype

    @property
    def device(self) -> torch.device:
        return self._precision.device

    # -- from data -----------------------------------------------------------------------------

    @torch.no_grad()
    def initialise(
        self,
        inputs: Tensor,
        targets: Tensor | None = None,
        *,
        seed: int | None = None,
        max_images: int = 512,
    ) -> DeepKernelMachine:
        """Set everything that comes from data: inducing inputs, mixing weights, Gram layers.

        Args:
            inputs: training images or vectors; at most ``max_images`` of them are used.
            targets: their labels; where they are classes, the images used are balanced.
            seed: of every random choice; torch's global generator if not given.
            max_images: images propagated through the model.

        Returns:
            The model itself.
        """
        self.input.check(inputs)
        if targets is not None:
            self.likelihood.check_targets(targets, len(inputs))
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        chosen = _balanced(len(inputs), targets, max_images, generator)
        inputs = self._checked(inputs[chosen.to(inputs.device)])
        with located("input"):
            gram = self.input.initialise(inputs, generator)
        with located("body"):
            gram = self.body.initialise(gram, generator)
        with located("head"):
            self.head.draw(generator)
            self.head(gram)
        return self

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Tensor]) -> DeepKernelMachine:
        """Replace the running statistics of normalisers by averages over ``batches``.

        Running averages lag behind the parameters while these move. A pass over some training
        batches, before evaluation, makes them exact for the parameters of the moment.

        Args:
            batches: batches of training inputs, such as ``images.split(256)``.

        Returns:
            The model itself.
        """
        layers = [module for module in self.modules() if isinstance(module, RunningStatistics)]
        momenta = [layer.momentum for layer in layers]
        with in_mode(self, training=True):
            for module in self.modules():
                if isinstance(module, GramLayer):  # as in evaluation: not sampled
                    module.eval()
            try:
                plan, seen = self.plan(), 0
                for batch in batches:
                    inputs = self._checked(batch)
                    seen += len(inputs)
                    for layer in layers:
                        layer.momentum = len(inputs) / seen
                    self._marginals(plan, inputs)
                if not seen:
                    raise InvalidInputError("there was no batch to calibrate with")
            finally:
                for layer, momentum in zip(layers, momenta, strict=True):
                    layer.momentum = momentum
        return self

    def compile_elementwise(self) -> bool:
        """Let ``torch.compile`` make the elementwise functions of kernels and Gram layers.

        Worth the 10 to 40 s that it takes where many steps follow. Where nothing compiles (no C++
        compiler), a warning is logged and PyTorch's own operations go on being used.

        Returns:
            Whether compiled functions are in use.
        """
        compiled = compiled_engine() is not None
        for layer in compilable(self):
            layer.compiled = compiled
        return compiled

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw the random numbers of a training step anew, in all layers that have such.

        In training, :meth:`objective` and :class:`RecordedGradients` do so by themselves.

        Args:
            generator: to draw from; torch's global generator if not given.
        """
        for module in self.modules():
            if isinstance(module, Layer):
                module.resample(generator)

    # -- the machine ---------------------------------------------------------------------------

    def plan(self) -> ModelPlan:
        """Work out the inducing chain: every matrix that does not depend on data, and every KL."""
        with located("input"):
            ii = self.input.inducing_block()
        with located("body"):
            body = self.body.plan(ii)
        with located("head"):
            head = self.head.plan(body.ii)
        return ModelPlan(body, head, prefixed("body", body.kl))

    def gram(self, inputs: Tensor) -> Gram:
        """The final Gram, that which the head sees."""
        inputs = self._checked(inputs)
        with located("input"):
            gram = self.input(inputs)
        with located("body"):
            return self.body(gram)

    def marginals(self, inputs: Tensor) -> Marginals:
        """Mean and variance of the top-layer functions at every image, with gradients."""
        return self._marginals(self.plan(), self._checked(inputs))

    def forward(self, inputs: Tensor) -> Marginals:
        return self.marginals(inputs)

    def objective(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        num_data: int | None = None,
        plan: ModelPlan | None = None,
    ) -> Objective:
        """The objective on a mini-batch, to be maximised.

        Args:
            inputs: a batch of images or vectors.
            targets: their labels, or real targets.
            num_data: size of the whole training set, that of the batch where it is all there is.
            plan: the inducing chain, where :meth:`plan` has worked it out for these parameters.
                Without it, Gram layers that sample draw anew in training mode.
        """
        if num_data is None:
            raise InvalidInputError(
                "objective needs num_data, the size of the whole training set, for the KL terms,"
                " which would count too much by that of a batch: pass num_data=len(train_images)"
            )
        check_positive(num_data=num_data)
        inputs, targets = self.checked_batch(inputs, targets)
        if plan is None and self.training:
            self.resample()
        objective = self.objective_of_checked(inputs, targets, num_data=num_data, plan=plan)
        self.require_finite("the objective", objective.total)
        return objective

    def checked_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Raise unless they are a batch for this machine; return them as it works on them."""
        inputs = self._checked(inputs)
        return inputs, self.likelihood.check_targets(targets, len(inputs)).to(self.device)

    def objective_of_checked(
        self, inputs: Tensor, targets: Tensor, *, num_data: int, plan: ModelPlan | None = None
    ) -> Objective:
        """:meth:`objective` of what :meth:`checked_batch` returned; looks at no number in it."""
        plan = self.plan() if plan is None else plan
        marginals = self._marginals(plan, inputs)
        expected = self.likelihood.expected_log_prob(marginals, targets).mean()
        head_kl = plan.head_kl.expand(self.head.num_outputs)
        head_kl = head_kl.sum() if self.head_kl == "sum" else head_kl.mean()
        return Objective(expected.to(INDUCING_DTYPE), head_kl, plan.kl, num_data, marginals)

    @torch.no_grad()
    def predict(
        self,
        inputs: Tensor,
        *,
        batch_size: int | None = None,
        joint: bool = False,
        views: ViewsName | Views = "one",
    ) -> Prediction:
        """Predictive distribution, by the statistics of evaluation whatever the model's mode.

        Args:
            inputs: images or vectors.
            batch_size: how many to work on at a time, to bound memory; all by default.
            joint: work out the covariance between every two inputs as well (appendix E.2), so that
                the prediction has :attr:`~convdkm.Prediction.covariance`, and
                :meth:`~convdkm.Prediction.sample` draws functions. Time and memory grow with the
                square of the number of inputs.
            views: of every image, over which the top-layer functions are averaged: ``"one"`` (the
                image), ``"flip"``, ``"shifts"`` or ``"crops"``; see :mod:`convdkm.views`.
        """
        views = views if isinstance(views, Views) else Views(views)
        if joint and views.count > 1:
            raise InvalidInputError(f"joint predictions are by one view, got views={views.name!r}")
        with in_mode(self, training=False):
            prediction = self._predict(self.plan(), inputs, batch_size, views)
            if not joint:
                return prediction
            return replace(prediction, covariance=self._covariance(inputs, prediction.variance))

    def _covariance(self, inputs: Tensor, variance: Tensor) -> Tensor:
        """Covariance of the functions at every two inputs, ``(outputs|1, N, N)``, in float64.

        Two inputs need nothing of the others, so that the matrix is worked out block by block.
        """
        first = self.input.plan()
        if first is None:
            raise GramError(
                f"{type(self.input).__name__} does not define plan(), which joint predictions need"
            )
        with apart():
            plan = self.plan()
        count, places = len(inputs), math.prod(inputs.shape[2:])
        whole = any(getattr(layer, "depends_on_batch", False) for layer in self.modules())
        size = count if whole else max(1, math.isqrt(JOINT_ENTRIES // places))
        shape = (variance.shape[1], count, count)
        needed, there = INDUCING_DTYPE.itemsize * math.prod(shape), available_memory(self.device)
        if there is not None and needed > there:
            raise InvalidInputError(
                f"the covariance between every two of {count:,} inputs takes {needed / 2**30:,.1f}"
                f" GiB, but {there / 2**30:,.1f} GiB are available; predict fewer of them jointly"
            )
        covariance = torch.empty(shape, dtype=INDUCING_DTYPE, device=self.device)
        parts = [self._cast(part) for part in inputs.split(size)]
        for i, left in enumerate(parts):
            for j, right in enumerate(parts[: i + 1]):
                with located("input"):
                    between = first.covariance(left, right)
                    blocks = first.data(left), first.data(right)
                with located("body"):
                    one, other, between = plan.body.joint(*blocks, between)
                with located("head"):
                    block = plan.head.covariance(one[0], other[0], between)
                rows, columns = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
                covariance[:, rows, columns] = block
                covariance[:, columns, rows] = block.mT
        # The variance of each image alone, such as jitter, is in its marginal only.
        covariance.diagonal(dim1=1, dim2=2).copy_(variance.T)
        return covariance

    def folded(self, *, deterministic: bool = False) -> Predictor:
        """A frozen form for prediction: everything that is constant is multiplied out.

        It is a snapshot: training the model further does not change it. It can be saved to one
        file and exported to other programs.

        Args:
            deterministic: use running averages where the model takes the statistics of the batch,
                and an integral where it draws samples, so that a prediction depends on its image
                alone. Call :meth:`calibrate` first if the averages may lag.
        """
        from convdkm.predicting.fold import fold

        return fold(self, deterministic=deterministic)

    def _marginals(self, plan: ModelPlan, inputs: Tensor) -> Marginals:
        with located("input"):
            it, tt = self.input.data(inputs)
        return plan.marginals(it, tt, checkpointing=self.checkpointing)

    def _predict(
        self, plan: ModelPlan, inputs: Tensor, batch_size: int | None, views: Views
    ) -> Prediction:
        if batch_size is not None:
            check_positive(batch_size=batch_size)
        self.input.check(inputs)
        size = len(inputs) if batch_size is None else max(1, batch_size // views.count)
        parts = []
        for part in inputs.split(size):
            seen = channels_last(views.inputs(self._cast(part)))
            parts.append(self.likelihood.predict(views.averaged(self._marginals(plan, seen))))
        prediction = parts[0] if len(parts) == 1 else type(parts[0]).join(parts)
        self.require_finite("the prediction", prediction.mean.sum() + prediction.variance.sum())
        return prediction

    def _checked(self, inputs: Tensor) -> Tensor:
        self.input.check(inputs)
        return self._cast(inputs)

    def _cast(self, inputs: Tensor) -> Tensor:
        return channels_last(cast_samples(inputs, self.device, self.dtype))

    def require_finite(self, what: str, value: Tensor) -> None:
        """Raise if a result is not a number, naming the parameters that are to blame."""
        if value.is_meta or bool(torch.isfinite(value.detach())):
            return
        state = self.state_dict().items()
        damaged = [name for name, entry in state if not bool(torch.isfinite(entry).all())]
        blame = f" (not finite: {', '.join(damaged)})" if damaged else ""
        raise NotFiniteError(what + blame, self.dtype, 1, 1)


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Training or evaluation mode inside the block; every module's own is restored after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _balanced(
    count: int, targets: Tensor | None, most: int, generator: torch.Generator | None
) -> Tensor:
    """At most ``most`` indices in random order; taking classes in turn where there are classes."""
    check_positive(max_images=most)
    order = torch.randperm(count, generator=generator)
    classes = targets is not None and targets.ndim == 1 and not targets.dtype.is_floating_point
    if targets is None or not classes or len(targets) != count:
        return order[:most]
    labels = targets.detach().cpu()[order]
    rank = torch.empty(count, dtype=torch.long)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        rank[members] = torch.arange(len(members))
    return order[torch.argsort(rank, stable=True)][:most]
