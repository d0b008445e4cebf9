r"""Ridge regression on one-hot labels with the kernel of an infinitely wide network."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.checks import check_choice
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.base import Baseline, check_like
from convdkm.lab.baselines.kernels import solvers
from convdkm.lab.baselines.kernels.nngp import NNGPKernel
from convdkm.lab.baselines.kernels.progress import duration, size
from convdkm.lab.baselines.kernels.store import KernelStore
from convdkm.lab.baselines.kernels.tiles import Prepared
from convdkm.runtime.memory import available_memory

Solver = Literal["cholesky", "cg"]

WORTH_COMPILING = 60.0
"""Seconds of work from which on the compiler's time is given back."""


@dataclass(eq=False, repr=False)
class KernelRegression(Baseline):
    r"""Kernel ridge regression, as the NNGP papers of Table 3 classify images.

    Targets are one-hot labels minus one over the number of classes; the predicted class is that of
    the largest output of

    .. math:: f(x) = k(x, X) (K + \lambda \bar k I)^{-1} Y, \qquad
              \bar k = \tfrac1N \textstyle\sum_i k(x_i, x_i).

    >>> import torch
    >>> from convdkm.lab.baselines.kernel_regression import KernelRegression
    >>> from convdkm.lab.baselines.kernels import NNGPKernel, plain
    >>> images, labels = torch.randn(20, 1, 6, 6), torch.arange(20) % 2
    >>> images[labels == 1] += 1
    >>> machine = KernelRegression(NNGPKernel(plain(2))).fit(images, labels)
    >>> machine.predict(images[:3]).shape
    torch.Size([3])

    Args:
        kernel: the kernel.
        ridge: λ, relative to the mean variance; ``"loo"`` chooses from ``grid`` by the squared
            error of leaving one out, in closed form.
        solver: ``"cholesky"``, or ``"cg"`` for preconditioned conjugate gradients, which read the
            kernel block by block. With the latter ``"loo"`` looks at ``loo_points`` images only,
            drawn at random.
        augment_flips: train on the mirror images too. By symmetry the doubled system has the
            solution of one with the kernel :math:`k(x, x') + k(x, \text{flip } x')`, which is
            solved instead; a point is then left out together with its mirror image.
        folder: where blocks of the kernel are kept, so that a fit that was killed goes on where it
            stopped; None to keep it in memory.
        grid: relative ridges for ``"loo"``.
        block: images a side of a block on disk.
        rank: of the preconditioner of ``"cg"``.
        tolerance: of the residual of ``"cg"``.
        iterations: of ``"cg"``, at most.
        loo_points: see ``solver``.
        seed: of that choice.
        compiled: let ``torch.compile`` make the kernel's nonlinearities
            (:meth:`NNGPKernel.compile`); by default where a kernel takes longer than a minute.

    Attributes:
        ridge_: the relative ridge that was used.
        loo_: how each ridge did; None where the ridge was given.
        solved_: how conjugate gradients went; None for Cholesky.
    """

    kernel: NNGPKernel
    _: KW_ONLY
    ridge: Literal["loo"] | float = "loo"
    solver: Solver = "cholesky"
    augment_flips: bool = False
    folder: str | Path | None = None
    grid: Sequence[float] = solvers.GRID
    block: int = 256
    rank: int = 100
    tolerance: float = 1e-6
    iterations: int = 1000
    loo_points: int = 2000
    seed: int = 0
    compiled: bool | None = None

    ridge_: float = field(init=False)
    loo_: solvers.LeaveOneOut | None = field(init=False)
    solved_: solvers.Solved | None = field(init=False)

    def __post_init__(self) -> None:
        kernel, ridge = self.kernel, self.ridge
        check_choice("solver", self.solver, Solver)
        if ridge != "loo" and not (isinstance(ridge, int | float) and 0 < ridge < math.inf):
            raise InvalidInputError(f"ridge must be 'loo' or a positive number, got {ridge!r}")
        if self.loo_points < 2:
            raise InvalidInputError(f"loo_points must be at least 2, got {self.loo_points}")
        if self.augment_flips and (kernel.flips or kernel.normalise):
            raise InvalidInputError(
                "augment_flips=True takes a kernel with flips=False and normalise=False; averaging"
                " over flips and training on them are two ways to the same end"
            )
        self._used = copy.copy(kernel)
        if self.compiled is not None:
            self._used.compile(enabled=self.compiled)
        self._used.flips = kernel.flips or self.augment_flips
        self._train: Prepared | None = None
        self._weights = torch.empty(0)
        self._temperature: float | None = None

    # -- memory, disk and time -----------------------------------------------------------------

    def foresee(self, images: Tensor, labels: Tensor) -> None:
        """Raise, before any work, if the kernel would not fit in memory or on disk."""
        super().foresee(images, labels)
        count, itemsize = len(images), self.kernel.dtype.itemsize
        each = (self._used.check(images).map_places + images[0].numel()) * itemsize
        if self.solver == "cg":
            each += 3 * 8 * self.rank  # the preconditioner
            square = 8 if self.folder is None else 0
        else:
            # The matrix, eigenvectors, their squares and the workspace of the decomposition; or
            # the matrix, the same with its ridge, and its factor.
            square = 8 * (6 if self.ridge == "loo" else 4)
        needed, there = square * count**2 + each * count + self.kernel.memory, available_memory()
        if there is not None and needed > there:
            left = max(0, there - self.kernel.memory)
            # The positive root of square·n² + each·n = left, which is left / each for no square.
            fits = int(2 * left / (each + math.sqrt(each**2 + 4 * square * left)))
            advice = f"about {fits:,} images would fit"
            if self.solver == "cholesky" or self.folder is None:
                advice += "; or use solver='cg' with a folder, which keeps the kernel on disk"
            raise InvalidInputError(
                f"{self._used.name} of {count:,} images needs {size(needed)} of memory, and"
                f" {size(there)} are free; {advice}"
            )
        if self.folder is None:
            return
        folder = Path(self.folder).absolute()
        needed = KernelStore.bytes_needed(count, self.block, itemsize)
        needed -= sum(file.stat().st_size for file in folder.glob("block-*.npy"))
        there = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free
        if needed > there:
            raise InvalidInputError(
                f"the kernel of {count:,} images needs {size(needed)} in {self.folder}, and"
                f" {size(there)} are free there; about {int(math.sqrt(2 * there / itemsize)):,}"
                " images would fit"
            )

    def expected_seconds(self, images: Tensor, predicted: int) -> tuple[float, float]:
        """By the time of a few pairs; what is in the folder already is not subtracted."""
        count = len(images)
        square, others = count * (count + 1) // 2, count * predicted
        seconds = self._seconds_per_pair(images, square + others)
        return seconds * square, seconds * others

    def _seconds_per_pair(self, images: Tensor, pairs: int) -> float:
        """By a trial; with compiled functions from here on, where so many pairs are worth it."""
        kernel = self._used
        seconds = kernel.seconds_per_pair(images)
        undecided = self.compiled is None and not kernel.compiled
        worth_it = kernel.architecture.needs_pairs and seconds * pairs > WORTH_COMPILING
        if undecided and worth_it:
            seconds = kernel.compile().seconds_per_pair(images)
        return seconds

    def _check_time(self, images: Tensor, pairs: int) -> None:
        """Tell how long so many pairs take; an error if that is longer than the time limit."""
        seconds = self._seconds_per_pair(images, pairs)
        total = seconds * pairs
        self.tell(
            f"kernel {self._used.name}: {pairs:,} pairs, about {duration(total)}"
            f" ({1e3 * seconds:.2g} ms each in a trial)"
        )
        if self.minutes is not None and total > 60 * self.minutes:
            fits = int(len(images) * math.sqrt(60 * self.minutes / total))
            raise InvalidInputError(
                f"the kernel {self._used.name} of {len(images):,} images takes about"
                f" {duration(total)} and cannot stop early, more than the {self.minutes:g} min"
                f" allowed; about {fits:,} images would fit"
            )

    # -- learning ------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(self, images: Tensor, labels: Tensor) -> KernelRegression:
        """Compute the kernel of the training images and solve for the weights."""
        self.foresee(images, labels)
        labels = labels.to("cpu", torch.int64)
        targets = F.one_hot(labels).to(torch.float64)
        targets -= 1 / targets.shape[1]
        matrix, ready = self._kernel(images)
        # Ridges are relative to the mean variance. With mirror images the matrix at hand is
        # (A + B) / 2, where the doubled system is (A + B + λ) a = y.
        variances = self.kernel.variance(images) / 2 if self.augment_flips else matrix.diagonal()
        mean = float(variances.mean())
        self.loo_, self.solved_, self._temperature = None, None, None
        self.ridge_ = self._chosen(matrix, targets, mean) if self.ridge == "loo" else self.ridge
        if isinstance(matrix, Tensor) and self.solver == "cholesky":
            self._weights = solvers.solve_directly(matrix, targets, self.ridge_ * mean)
        else:
            self.solved_ = solvers.conjugate_gradients(
                matrix,
                targets,
                self.ridge_ * mean,
                rank=self.rank,
                tolerance=self.tolerance,
                iterations=self.iterations,
                tell=self.tell,
            )
            self._weights = self.solved_.solution
        self._train = ready
        return self

    def _kernel(self, images: Tensor) -> tuple[Tensor | KernelStore, Prepared]:
        """The kernel matrix, on disk if there is a folder and no need of it in memory."""
        store, pairs = None, len(images) * (len(images) + 1) // 2
        if self.folder is not None:
            store = KernelStore(self.folder, self._used, images, block=self.block)
            pairs = store.missing_pairs()
        if pairs:
            self._check_time(images, pairs)
        ready = self._used.prepare(images)
        if store is None:
            return self._used.block(ready, None, tell=self.tell), ready
        store.compute(tell=self.tell, ready=ready)
        return store if self.solver == "cg" else store.matrix(), ready

    def _chosen(self, matrix: Tensor | KernelStore, targets: Tensor, mean: float) -> float:
        """The ridge chosen by leaving one out, which also gives the temperature."""
        if self.solver == "cg":
            generator = torch.Generator().manual_seed(self.seed)
            chosen = torch.randperm(len(matrix), generator=generator)[: self.loo_points]
            matrix = torch.stack([matrix[int(index)][chosen] for index in chosen])
            targets = targets[chosen]
        assert isinstance(matrix, Tensor)
        found = solvers.leave_one_out(matrix, targets, [ridge * mean for ridge in self.grid])
        self.loo_, ridge = found, self.grid[found.best]
        self._temperature = calibrated(targets - found.residuals, targets.argmax(1))
        edge = " (at the edge of the grid)" if found.at_edge else ""
        self.tell(
            f"leaving one out: ridge {ridge:.2g} of {len(self.grid)}, accuracy"
            f" {found.accuracies[found.best]:.1%}{edge}"
        )
        return ridge

    # -- predicting ----------------------------------------------------------------------------

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """f(x) of each image and class, in float64."""
        train = self.require_fitted(self._train)
        check_like(images, train.images.shape[1:])
        step = max(1, self.kernel.memory // (8 * len(train)))
        parts = (self._used.prepare(some) for some in images.split(step))
        blocks = (self._used.block(part, train, tell=self.tell) for part in parts)
        return torch.cat([block @ self._weights for block in blocks])

    def probabilities(self, images: Tensor) -> Tensor | None:
        """A softmax of the scores, its temperature fitted to the points left out.

        None where the ridge was given, so that no point was left out.
        """
        if self._temperature is None:
            return None
        return (self.scores(images) / self._temperature).softmax(1)

    @property
    def parameters(self) -> int:
        """One weight for each training image and class."""
        return self._weights.numel()


def calibrated(scores: Tensor, labels: Tensor) -> float:
    """The temperature at which the softmax of scores gives labels the greatest likelihood.

    From a grid of 10⁻³ to 10³, 40 a decade.
    """
    temperatures = torch.logspace(-3, 3, 241, dtype=torch.float64)
    losses = [float(F.cross_entropy(scores / each, labels)) for each in temperatures]
    return float(temperatures[losses.index(min(losses))])
