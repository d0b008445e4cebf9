"""Kernels: Gram → Gram, entry by entry, with no knowledge of space.

A new kernel is a module of this folder and an entry of :data:`KERNELS`, which configurations, flags
and estimators read. The command line does so without PyTorch: the names below are imported when one
of them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from convdkm.kernels.registry import Option, Registered, Registry

if TYPE_CHECKING:
    from convdkm.kernels.angular import Angular as Angular
    from convdkm.kernels.arccos import ArcCosine as ArcCosine
    from convdkm.kernels.arccos import arccosine as arccosine
    from convdkm.kernels.arcsine import ArcSine as ArcSine
    from convdkm.kernels.base import ConvexCombination as ConvexCombination
    from convdkm.kernels.base import Kernel as Kernel
    from convdkm.kernels.base import Linear as Linear
    from convdkm.kernels.base import Product as Product
    from convdkm.kernels.base import Scaled as Scaled
    from convdkm.kernels.base import Sum as Sum
    from convdkm.kernels.gaussian import NormalisedGaussian as NormalisedGaussian
    from convdkm.kernels.isotropic import Isotropic as Isotropic
    from convdkm.kernels.isotropic import Matern as Matern
    from convdkm.kernels.isotropic import RationalQuadratic as RationalQuadratic
    from convdkm.kernels.isotropic import SquaredExponential as SquaredExponential
    from convdkm.kernels.leaky import LeakyReLU as LeakyReLU
    from convdkm.kernels.polynomial import NormalisedPolynomial as NormalisedPolynomial
    from convdkm.kernels.sine import Sine as Sine
    from convdkm.numerics import safe_sqrt as safe_sqrt

    KernelName = str

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

_MODULES = dict.fromkeys(
    ("base", "angular", *(each.place.partition(":")[0] for each in KERNELS.values()))
)


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for module in _MODULES:
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if getattr(found, "__module__", "").startswith("convdkm."):
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
