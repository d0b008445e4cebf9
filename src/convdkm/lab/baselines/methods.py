"""The methods that can be compared, by name: what each is, what it needs and how it is built.

A method's class is imported when it is built, so that listing the methods does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from convdkm.errors import InvalidInputError
from convdkm.lab import baselines
from convdkm.lab.baselines.setting import Setting
from convdkm.options import nearest

if TYPE_CHECKING:
    from convdkm.lab.baselines.base import Baseline

Builder = Callable[[Setting], "Baseline"]

STEPS = 1000
"""The least number of gradient steps, where there is time for them."""
EXTRAS = {"gp": "gpytorch"}
"""The package that shows whether an extra is installed."""


def trained(kind: str, *, by_preset: bool = False, **options: Any) -> Builder:
    """The builder of a class that learns by at least :data:`STEPS` gradient steps.

    ``by_preset`` says whether the class takes a preset; ``options`` are those of the class, besides
    the seed, the crops and the flips of the setting.
    """

    def build(setting: Setting) -> Baseline:
        given = {"seed": setting.seed, **setting.augmentation, **options}
        if by_preset:
            given |= {"preset": setting.preset, "dataset": setting.dataset, "device": "cpu"}
        baseline: Any = getattr(baselines, kind)(**given)
        if setting.size is not None:
            training = baseline.config.training
            epochs = -(-STEPS // -(-setting.size // training.batch_size))
            baseline.config = baseline.config.updated({"epochs": max(epochs, training.epochs)})
        return baseline

    return build


def kernel(
    network: str,
    depth: int,
    top: Literal["flat", "local"] | None = None,
    *,
    flips: bool = False,
    augment_flips: bool = False,
    normalise_inputs: bool = False,
    **options: Any,
) -> Builder:
    """The builder of a regression on the exact kernel of a network of so much depth.

    The network is a function of :mod:`convdkm.lab.baselines.kernels`; its top is the usual one,
    ``"flat"`` for no pooling, or ``"local"`` to average neighbouring places over a quarter of the
    side. Flips are those of the kernel and of the regression, where mirror images are of the same
    class; further options are of the regression.
    """

    def build(setting: Setting) -> Baseline:
        from convdkm.lab.baselines import kernels
        from convdkm.layers import Flatten

        window = setting.side // 4 // 2 * 2 + 1  # odd; 9 for 32×32, 3 for 8×8
        tops: Any = {None: [], "flat": [Flatten()], "local": [kernels.LocalAverage(window)]}
        return baselines.KernelRegression(
            kernels.NNGPKernel(
                getattr(kernels, network)(depth, *tops[top]),
                flips=flips and setting.flip,
                normalise_inputs=normalise_inputs,
            ),
            augment_flips=augment_flips and setting.flip,
            folder=setting.folder,
            seed=setting.seed,
            **options,
        )

    return build


@dataclass(frozen=True)
class Method:
    """A method by its name.

    Attributes:
        name: in ``--methods``.
        label: in tables.
        about: description, in one line.
        group: name of a group of similar methods.
        build: builds the method for a setting.
        rows: rows of the paper's Table 3 that it stands for, as in ``comparison.yaml``.
        extra: optional dependencies that it needs, such as ``gp`` for ``convdkm[gp]``.
        flips: whether it is about mirror images, which some data sets do not allow.
        without_flips: the name of the method that it equals without them, if any.
    """

    name: str
    label: str
    about: str
    group: str
    build: Builder
    rows: tuple[str, ...] = ()
    extra: str | None = None
    flips: bool = False
    without_flips: str | None = None

    @property
    def installed(self) -> bool:
        """Whether its optional dependencies are installed."""
        return self.extra is None or find_spec(EXTRAS[self.extra]) is not None

    def title(self, *, flip: bool) -> str:
        """The label, which says so where the data do not allow mirror images."""
        return f"{self.label}, without flips" if self.flips and not flip else self.label


# fmt: off
METHODS = (
    Method("dkm", "Deep kernel machine", "convolutional deep kernel machine of the preset",
           "machines", trained("Machine", by_preset=True), rows=("dkm",)),
    Method("dkm-nu1", "Deep kernel machine, ν = 1",
           "the same machine at ν = 1, which learns more cautiously from few images",
           "machines", trained("Machine", by_preset=True, nu=1.0)),
    Method("inducing-nngp", "Inducing NNGP",
           "the same machine at ν = ∞, which learns no representation",
           "machines", trained("InducingNNGP", by_preset=True)),
    Method("cnn", "CNN", "residual network of the machine's shape and recipe",
           "networks", trained("CNN", by_preset=True)),
    Method("nngp-linear", "NNGP, vectorised", "kernel of 6 convolutions, no pooling",
           "kernels", kernel("plain", 6, "flat")),
    Method("nngp-gap", "NNGP-GAP", "kernel of 4 convolutions, all places averaged on top",
           "kernels", kernel("plain", 4), rows=("novak-2018", "arora-2019")),
    Method("nngp-residual", "Residual NNGP-GAP",
           "kernel of a residual network of 2 blocks, all places averaged",
           "kernels", kernel("residual", 2)),
    Method("nngp-gap-da", "NNGP-GAP-DA", "NNGP-GAP trained on mirror images too",
           "kernels", kernel("plain", 4, augment_flips=True), rows=("lee-2020",),
           flips=True, without_flips="nngp-gap"),
    Method("nngp-lap-flip", "NNGP-LAP-flip",
           "neighbouring places averaged on top, and the kernel over mirror images",
           "kernels", kernel("plain", 4, "local", flips=True), rows=("li-2019",), flips=True),
    Method("myrtle5", "Myrtle5", "kernel of the Myrtle network 5 deep",
           "kernels", kernel("myrtle", 5)),
    Method("myrtle7", "Myrtle7", "kernel of the Myrtle network 7 deep",
           "kernels", kernel("myrtle", 7)),
    Method("myrtle10", "Myrtle10", "kernel of the Myrtle network 10 deep",
           "kernels", kernel("myrtle", 10), rows=("shankar-2020",)),
    Method("myrtle10-tuned", "Tuned Myrtle10 DA CG",
           "Myrtle10 of normalised images, trained on mirror images too, by conjugate gradients",
           "kernels", kernel("myrtle", 10, normalise_inputs=True, augment_flips=True, solver="cg"),
           rows=("adlam-2023",), flips=True),
    Method("conv-gp", "Conv GP", "convolutional Gaussian process with inducing patches",
           "processes", trained("ConvolutionalGP"), extra="gp"),
    Method("conv-gp-sovi", "SOVI Conv GP", "the same with as many orthogonal inducing patches",
           "processes", trained("ConvolutionalGP", orthogonal=100), rows=("shi-2020",), extra="gp"),
    Method("conv-dgp", "Conv DGP", "deep convolutional Gaussian process with a hidden layer",
           "processes", trained("DeepConvolutionalGaussianProcess"),
           rows=("blomqvist-2018", "dutordoir-2020"), extra="gp"),
    Method("ckn", "CKN", "convolutional kernel network, unsupervised, and a linear classifier",
           "networks", lambda setting: baselines.UnsupervisedCKN(seed=setting.seed),
           rows=("mairal-2014",)),
    Method("ckn-supervised", "Sup CKN", "convolutional kernel network learned with its classifier",
           "networks", trained("SupervisedCKN"), rows=("mairal-2016",)),
)
# fmt: on
"""All methods, in the order of tables."""

NAMES = tuple(each.name for each in METHODS)
QUICK = ("dkm", "inducing-nngp", "cnn", "nngp-linear", "ckn", "ckn-supervised")
"""Methods where none is named: those that take minutes on colour images of 32×32, not hours."""
GROUPS: dict[str, tuple[str, ...]] = {
    "all": NAMES,
    "quick": QUICK,
    **{each.group: tuple(m.name for m in METHODS if m.group == each.group) for each in METHODS},
}
"""Names that stand for several methods."""


def method(name: str) -> Method:
    """The method of that name; an error with the nearest if there is none."""
    for each in METHODS:
        if each.name == name:
            return each
    suggestion = nearest(name, (*NAMES, *GROUPS))
    raise InvalidInputError(
        f"there is no method {name!r}.{suggestion} There are {', '.join(NAMES)}; and for several at"
        f" once {', '.join(GROUPS)}."
    )


def chosen(names: Iterable[str] | None, *, flip: bool = True) -> tuple[str, ...]:
    """Methods by their names and those of groups, each once, in the order of tables.

    Args:
        names: of methods and groups; those of ``quick`` if not given.
        flip: whether mirror images are of the same class. Where they are not, groups leave out a
            method that is the same as another of theirs then.
    """
    wanted: set[str] = set()
    for name in ("quick",) if names is None else names:
        if name in GROUPS:
            group = GROUPS[name]
            wanted.update(each for each in group if flip or method(each).without_flips not in group)
        else:
            wanted.add(method(name).name)
    return tuple(name for name in NAMES if name in wanted)
