"""The methods that can be compared, by name: what each is, what it needs, and how it is made.

A list of them asks for no torch: what a method is built of is imported when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convdkm.config import RunConfig, nearest
from convdkm.errors import InvalidInputError
from convdkm.presets import preset as preset_named

if TYPE_CHECKING:
    from convdkm.rivals.base import Rival
    from convdkm.rivals.kernels import Architecture
    from convdkm.rivals.kernels.layers import Top

PLAIN_DEPTH, FLAT_DEPTH, BLOCKS = 4, 6, 2
"""Convolutions of the plain kernels, of the one without pooling, and blocks of the residual one."""
STEPS = 1000
"""What learns by steps makes as many at least, where there is time for them."""
NATIVE_SIDE = 28
"""Of the smallest images that the crops of presets are made for, but for sets of small images."""
EXTRAS = {"gp": "gpytorch"}
"""The package that tells whether an extra is installed."""


@dataclass(frozen=True)
class Setting:
    """What a method is made for.

    Attributes:
        dataset: its name or path, for settings of its own in the preset.
        seed: of all that is random.
        preset: of the machine, the inducing NNGP and the CNN; crops and flips of all methods.
        side: of the images, the shorter one.
        size: training images, if that is known; where they are few, epochs are made more.
        folder: where a kernel may keep its blocks, so that a fit that was killed can go on.
    """

    dataset: str = "images"
    seed: int = 0
    preset: str = "quick"
    side: int = 32
    size: int | None = None
    folder: Path | None = None

    @cached_property
    def config(self) -> RunConfig:
        """The preset's settings for the data set."""
        return preset_named(self.preset).config(self.dataset)

    @property
    def flip(self) -> bool:
        """Whether mirror images are of the same class: not for digits."""
        return self.config.data.flip

    @property
    def augmentation(self) -> dict[str, Any]:
        """Crops and flips, as options of a method.

        Crops of a preset are meant for images of :data:`NATIVE_SIDE` pixels; smaller ones move in
        proportion.
        """
        crop = round(self.config.data.crop * min(1.0, self.side / NATIVE_SIDE))
        return {"crop": crop, "flip": self.flip}


@dataclass(frozen=True)
class Method:
    """A method by its name.

    Attributes:
        name: in ``--methods``.
        label: in tables.
        about: what it is, in one line.
        group: a name for it and its like.
        build: makes it.
        rows: of the paper's Table 3 that it stands for, by their names in ``comparison.yaml``.
        extra: that it needs, such as ``gp`` for ``convdkm[gp]``.
        flips: whether its point are mirror images, which data without flips leaves off.
        without_flips: the method that it is then, if it is another one.
    """

    name: str
    label: str
    about: str
    group: str
    build: Callable[[Setting], Rival]
    rows: tuple[str, ...] = ()
    extra: str | None = None
    flips: bool = False
    without_flips: str | None = None

    @property
    def installed(self) -> bool:
        """Whether all that it needs is there."""
        return self.extra is None or find_spec(EXTRAS[self.extra]) is not None

    def title(self, *, flip: bool) -> str:
        """Its label; where mirror images are of other classes it says that there are none."""
        return f"{self.label}, without flips" if self.flips and not flip else self.label


def _kernel(setting: Setting, architecture: Architecture, **options: Any) -> Rival:
    from convdkm.rivals.kernel_regression import KernelRegression
    from convdkm.rivals.kernels import NNGPKernel

    ours = {name: options.pop(name) for name in ("flips", "normalise_inputs") if name in options}
    return KernelRegression(
        NNGPKernel(architecture, **ours), folder=setting.folder, seed=setting.seed, **options
    )


def _plain(setting: Setting, depth: int, top: Top | None = None, **options: Any) -> Rival:
    from convdkm.rivals.kernels import plain

    return _kernel(setting, plain(depth, top), **options)


def _linear(setting: Setting) -> Rival:
    from convdkm.rivals.kernels import Flatten

    return _plain(setting, FLAT_DEPTH, Flatten())


def _residual(setting: Setting) -> Rival:
    from convdkm.rivals.kernels import residual

    return _kernel(setting, residual(BLOCKS))


def _local(setting: Setting) -> Rival:
    from convdkm.rivals.kernels import LocalAverage

    size = setting.side // 4 // 2 * 2 + 1  # odd; 9 for 32×32, 3 for 8×8
    return _plain(setting, PLAIN_DEPTH, LocalAverage(size), flips=setting.flip)


def _augmented(setting: Setting) -> Rival:
    return _plain(setting, PLAIN_DEPTH, augment_flips=setting.flip)


def _myrtle(depth: int) -> Callable[[Setting], Rival]:
    def build(setting: Setting) -> Rival:
        from convdkm.rivals.kernels import myrtle

        return _kernel(setting, myrtle(depth))

    return build


def _tuned(setting: Setting) -> Rival:
    from convdkm.rivals.kernels import myrtle

    return _kernel(
        setting, myrtle(10), normalise_inputs=True, augment_flips=setting.flip, solver="cg"
    )


def _enough(rival: Any, setting: Setting) -> Rival:
    """The method, with so many epochs that it makes :data:`STEPS` steps at least."""
    training = rival.config.training
    if setting.size is not None:
        least = -(-STEPS // -(-setting.size // training.batch_size))
        if least > training.epochs:
            rival.config = rival.config.updated({"epochs": least})
    made: Rival = rival
    return made


def _of_preset(setting: Setting) -> dict[str, Any]:
    return {
        "preset": setting.preset,
        "dataset": setting.dataset,
        "seed": setting.seed,
        "device": "cpu",
        **setting.augmentation,
    }


def _machine(setting: Setting, **options: Any) -> Rival:
    from convdkm.rivals.machine import Machine

    return _enough(Machine(**{**_of_preset(setting), **options}), setting)


def _cautious(setting: Setting) -> Rival:
    return _machine(setting, nu=1.0)


def _inducing(setting: Setting) -> Rival:
    from convdkm.rivals.machine import InducingNNGP

    return _enough(InducingNNGP(**_of_preset(setting)), setting)


def _network(setting: Setting) -> Rival:
    from convdkm.rivals.cnn import CNN

    return _enough(CNN(**_of_preset(setting)), setting)


def _process(setting: Setting, **options: Any) -> Rival:
    from convdkm.rivals.gp import ConvolutionalGP

    process = ConvolutionalGP(seed=setting.seed, **setting.augmentation, **options)
    return _enough(process, setting)


def _orthogonal(setting: Setting) -> Rival:
    return _process(setting, orthogonal=100)


def _deep_process(setting: Setting) -> Rival:
    from convdkm.rivals.gp import DeepConvolutionalGaussianProcess

    process = DeepConvolutionalGaussianProcess(seed=setting.seed, **setting.augmentation)
    return _enough(process, setting)


def _ckn(setting: Setting) -> Rival:
    from convdkm.rivals.ckn import UnsupervisedCKN

    return UnsupervisedCKN(seed=setting.seed)


def _supervised_ckn(setting: Setting) -> Rival:
    from convdkm.rivals.ckn import SupervisedCKN

    return _enough(SupervisedCKN(seed=setting.seed, **setting.augmentation), setting)


METHODS = (
    Method(
        "dkm",
        "Deep kernel machine",
        "convolutional deep kernel machine of the preset",
        "machines",
        _machine,
        rows=("dkm",),
    ),
    Method(
        "dkm-nu1",
        "Deep kernel machine, ν = 1",
        "the same machine at ν = 1, which learns more cautiously from few images",
        "machines",
        _cautious,
    ),
    Method(
        "inducing-nngp",
        "Inducing NNGP",
        "the same machine at ν = ∞, which learns no representation",
        "machines",
        _inducing,
    ),
    Method(
        "cnn", "CNN", "residual network of the machine's shape and recipe", "networks", _network
    ),
    Method(
        "nngp-linear",
        "NNGP, vectorised",
        f"kernel of {FLAT_DEPTH} convolutions, no pooling",
        "kernels",
        _linear,
    ),
    Method(
        "nngp-gap",
        "NNGP-GAP",
        f"kernel of {PLAIN_DEPTH} convolutions, all places averaged on top",
        "kernels",
        lambda setting: _plain(setting, PLAIN_DEPTH),
        rows=("novak-2018", "arora-2019"),
    ),
    Method(
        "nngp-residual",
        "Residual NNGP-GAP",
        f"kernel of a residual network of {BLOCKS} blocks, all places averaged",
        "kernels",
        _residual,
    ),
    Method(
        "nngp-gap-da",
        "NNGP-GAP-DA",
        "NNGP-GAP trained on mirror images too",
        "kernels",
        _augmented,
        rows=("lee-2020",),
        flips=True,
        without_flips="nngp-gap",
    ),
    Method(
        "nngp-lap-flip",
        "NNGP-LAP-flip",
        "neighbouring places averaged on top, and the kernel over mirror images",
        "kernels",
        _local,
        rows=("li-2019",),
        flips=True,
    ),
    Method("myrtle5", "Myrtle5", "kernel of the Myrtle network 5 deep", "kernels", _myrtle(5)),
    Method("myrtle7", "Myrtle7", "kernel of the Myrtle network 7 deep", "kernels", _myrtle(7)),
    Method(
        "myrtle10",
        "Myrtle10",
        "kernel of the Myrtle network 10 deep",
        "kernels",
        _myrtle(10),
        rows=("shankar-2020",),
    ),
    Method(
        "myrtle10-tuned",
        "Tuned Myrtle10 DA CG",
        "Myrtle10 of normalised images, trained on mirror images too, by conjugate gradients",
        "kernels",
        _tuned,
        rows=("adlam-2023",),
        flips=True,
    ),
    Method(
        "conv-gp",
        "Conv GP",
        "convolutional Gaussian process with inducing patches",
        "processes",
        _process,
        extra="gp",
    ),
    Method(
        "conv-gp-sovi",
        "SOVI Conv GP",
        "the same with as many orthogonal inducing patches",
        "processes",
        _orthogonal,
        rows=("shi-2020",),
        extra="gp",
    ),
    Method(
        "conv-dgp",
        "Conv DGP",
        "deep convolutional Gaussian process with a hidden layer",
        "processes",
        _deep_process,
        rows=("blomqvist-2018", "dutordoir-2020"),
        extra="gp",
    ),
    Method(
        "ckn",
        "CKN",
        "convolutional kernel network, unsupervised, and a linear classifier",
        "networks",
        _ckn,
        rows=("mairal-2014",),
    ),
    Method(
        "ckn-supervised",
        "Sup CKN",
        "convolutional kernel network learned with its classifier",
        "networks",
        _supervised_ckn,
        rows=("mairal-2016",),
    ),
)
"""All methods, in the order of tables."""

NAMES = tuple(each.name for each in METHODS)
QUICK = ("dkm", "inducing-nngp", "cnn", "nngp-linear", "ckn", "ckn-supervised")
"""Methods where none is named: those that take minutes on colour images of 32×32, not hours."""
GROUPS: dict[str, tuple[str, ...]] = {
    "all": NAMES,
    "quick": QUICK,
    **{
        group: tuple(each.name for each in METHODS if each.group == group)
        for group in dict.fromkeys(each.group for each in METHODS)
    },
}
"""Names that stand for several methods."""


def method(name: str) -> Method:
    """The method of that name; an error with the nearest if there is none."""
    for each in METHODS:
        if each.name == name:
            return each
    known = (*NAMES, *GROUPS)
    raise InvalidInputError(
        f"there is no method {name!r}.{nearest(name, known)} There are {', '.join(NAMES)}; and for"
        f" several at once {', '.join(GROUPS)}."
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
