"""How kernels are known by name: to configurations, flags and estimators, without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from convdkm.errors import InvalidInputError

if TYPE_CHECKING:
    from convdkm.kernels.base import Kernel

    KernelName = str


class Option(NamedTuple):
    """A number that shapes a kernel, as configurations and flags know it.

    Attributes:
        name: in configurations.
        argument: of the kernel's class that it is given as.
        kind: float, a tuple of floats, or a literal.
        default: None for options that may be left out.
        description: its help text.
        above: what it must be larger than.
        refused: an error where the kernel is one that has no such option; others are not looked at
            then, so that a preset's numbers do not stand in the way of another kernel.
    """

    name: str
    argument: str
    kind: Any
    default: Any
    description: str
    above: float | None = None
    refused: bool = False


class Registered(NamedTuple):
    """A kernel that has a name.

    Attributes:
        place: the module of this folder and the class, ``"arccos:ArcCosine"``.
        options: those that it takes.
        given: other arguments of the class.
    """

    place: str
    options: tuple[Option, ...] = ()
    given: Mapping[str, Any] = {}


class Registry(dict[str, Registered]):
    """Kernels by name."""

    @property
    def options(self) -> dict[str, Option]:
        """Those of all kernels, by name."""
        return {option.name: option for each in self.values() for option in each.options}

    def build(self, name: str, values: Mapping[str, Any]) -> Kernel:
        """The kernel of that name, with options by their names; by their defaults where missing."""
        if name not in self:
            listed = ", ".join(map(repr, self))
            raise InvalidInputError(f"kernel must be a Kernel or one of {listed}; got {name!r}")
        place, options, given = self[name]
        values = {key: values.get(key, option.default) for key, option in self.options.items()}
        wrong = [
            option
            for key, option in self.options.items()
            if option.refused and option not in options and values[key] != option.default
        ]
        if wrong:
            raise self._refusal(name, wrong)
        module, _, kind = place.partition(":")
        made = getattr(import_module(f"convdkm.kernels.{module}"), kind)
        kernel: Kernel = made(**{each.argument: values[each.name] for each in options}, **given)
        return kernel

    def _refusal(self, name: str, wrong: list[Option]) -> InvalidInputError:
        first, *others = (each for each, kernel in self.items() if wrong[0] in kernel.options)
        also = f" (and to {', '.join(others)})" if others else ""
        names = " and ".join(option.name for option in wrong)
        return InvalidInputError(
            f"{names} belong{'s' * (len(wrong) < 2)} to the {first} kernel{also}, and the kernel is"
            f" {name!r}; choose another preset, or leave them out"
        )


_VARIANCES = tuple(
    Option(name, name, float, None, f"of the kernel, to start with; {rest}", above=0, refused=True)
    for name, rest in (
        ("weight_variance", "not learned if not given"),
        ("bias_variance", "none if not given"),
    )
)
_ORDER = Option(
    "arccos_order", "order", Literal[0, 1, 2], 1, "order of the arc-cosine kernel", refused=True
)
_LEAKY_SLOPE = Option(
    "leaky_slope", "slope", float, 0.01, "kernel 'leaky-relu': slope of negative inputs"
)
_SINE = (
    Option("sine_frequency", "frequency", float, 1.0, "kernel 'sine': of its argument", 0),
    Option("sine_phase", "phase", float, 0.0, "kernel 'sine': in radians; π/2 for the cosine"),
)
_GAMMA = Option(
    "gamma", "gamma", float, 1.0, "kernel 'normalised-gaussian': the larger, the less linear", 0
)
_POLYNOMIAL = Option(
    "polynomial",
    "weights",
    tuple[float, ...],
    (0.25, 0.75),
    "kernel 'normalised-polynomial': weights of its powers, from 1 on",
)

KERNELS = Registry(
    {
        "arc-cosine": Registered("arccos:ArcCosine", (_ORDER, *_VARIANCES)),
        "arc-cosine-learned": Registered(
            "arccos:ArcCosine", given={"weight_variance": 1.0, "bias_variance": 0.1}
        ),
        "erf": Registered("arcsine:ArcSine", _VARIANCES),
        "leaky-relu": Registered("leaky:LeakyReLU", (_LEAKY_SLOPE, *_VARIANCES)),
        "sine": Registered("sine:Sine", (*_SINE, *_VARIANCES)),
        "normalised-gaussian": Registered("gaussian:NormalisedGaussian", (_GAMMA,)),
        "normalised-gaussian-learned": Registered(
            "gaussian:NormalisedGaussian", (_GAMMA,), {"learn": True}
        ),
        "normalised-polynomial": Registered("polynomial:NormalisedPolynomial", (_POLYNOMIAL,)),
        "squared-exponential": Registered("isotropic:SquaredExponential", given={"learn": True}),
        "matern": Registered("isotropic:Matern", given={"learn": True}),
        "rational-quadratic": Registered("isotropic:RationalQuadratic", given={"learn": True}),
    }
)
"""Kernels that have a name."""

if not TYPE_CHECKING:
    KernelName = Literal[tuple(KERNELS)]
