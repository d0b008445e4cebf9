"""Kernels in files: their class, their plain attributes and their tensors.

A kernel of a machine is also that of its folded form; only what it has learned is constant there.
So a file names the class, which must be known to the program that reads it: one of this library's,
or one of the user's own that has been imported. Nothing is imported for the sake of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from convdkm.errors import InvalidInputError
from convdkm.kernels import (
    ArcCosine,
    Kernel,
    Linear,
    Matern,
    NormalisedGaussian,
    NormalisedPolynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
)
from convdkm.kernels.base import Positive

_BASE = frozenset(vars(nn.Module()))
_LATER = frozenset({"compiled"})
_PARTS = (Positive, nn.ModuleList)
_PLAIN = (bool, int, float, str, type(None))


class NotDescribableError(Exception):
    """A kernel that cannot be written to a file; the message says why."""


def described(module: nn.Module) -> dict[str, Any]:
    """What :func:`rebuilt` needs besides the tensors, as plain values."""
    tensors = {**module._parameters, **module._buffers}
    plain = {name: None for name, tensor in tensors.items() if tensor is None}
    for name, value in vars(module).items():
        if name in _BASE or name in _LATER:
            continue
        if not _is_plain(value):
            raise NotDescribableError(
                f"its kernel {type(module).__name__} has an attribute {name!r} that is a"
                f" {type(value).__name__}, where a file takes numbers, text and tuples of them"
            )
        plain[name] = value
    parts = {name: described(part) for name, part in module.named_children()}
    return {"kind": "kernel", "class": _name(type(module)), "settings": plain, "parts": parts}


def rebuilt(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = ""
) -> nn.Module:
    """The kernel of a description, with the tensors whose names begin with ``prefix``."""
    kind = _class(str(description["class"]))
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in description["settings"].items():
        setattr(module, name, _as_tuples(value))
    for name, part in description["parts"].items():
        module.add_module(name, rebuilt(part, tensors, f"{prefix}{name}."))
    for name, tensor in tensors.items():
        own = name.removeprefix(prefix)
        if name.startswith(prefix) and "." not in own:
            module.register_buffer(own, tensor)
    return module.eval()


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _name(kind: type) -> str:
    """A name that is unique; the library's own have no module, which may change."""
    own = kind.__module__.startswith(("convdkm.", "torch."))
    return kind.__qualname__ if own else f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type[nn.Module]:
    known = {_name(kind): kind for kind in (*_PARTS, *_kernels(Kernel))}
    if name in known:
        return known[name]
    module, _, short = name.rpartition(":")
    alike = [kind for full, kind in known.items() if module and full.endswith(f":{short}")]
    if len(alike) == 1:  # the same class, imported from elsewhere
        return alike[0]
    raise InvalidInputError(
        f"the file has the kernel {short}, which is not known here"
        + (f"; import it first, from {module} where the file was written" if module else "")
    )


def _kernels(kind: type[nn.Module]) -> Iterator[type[nn.Module]]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _kernels(derived)


# -- files of earlier versions -----------------------------------------------------------------


def _arc_cosine(order: int, slope: float, intercept: float) -> Kernel:
    return ArcCosine(order, weight_variance=slope, bias_variance=intercept or None, learn=False)


def _isotropic(form: str, precision: float, scale: float, shape: float) -> Kernel:
    length = precision**-0.5
    if form == "matern":
        return Matern(shape, length, scale=scale)
    if form == "rational-quadratic":
        return RationalQuadratic(shape, length, scale=scale)
    return SquaredExponential(length, scale=scale)


def _sum(kernels: list[Kernel], weights: tuple[float, ...]) -> Kernel:
    return Sum(*(Scaled(kernel, weight) for kernel, weight in zip(kernels, weights, strict=True)))


EARLIER: dict[str, Callable[..., Kernel]] = {
    "FoldedArcCosine": _arc_cosine,
    "FoldedLinear": Linear,
    "FoldedSum": _sum,
    "FoldedProduct": lambda kernels: Product(*kernels),
    "FoldedIsotropic": _isotropic,
    "FoldedNormalisedGaussian": NormalisedGaussian,
    "FoldedNormalisedPolynomial": NormalisedPolynomial,
}
"""Kernels that files of earlier versions name, from their settings."""


def earlier(description: Mapping[str, Any]) -> Kernel:
    """A kernel as files of earlier versions describe it."""
    settings = {name: _as_tuples(value) for name, value in description["settings"].items()}
    if "kernels" in description["parts"]:
        inner = description["parts"]["kernels"]["parts"].values()
        settings["kernels"] = [earlier(each) for each in inner]
    return EARLIER[description["kind"]](**settings)
