"""What the modules of a folded machine have in common: constants, a description, a way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from convdkm.kernels import Kernel
from convdkm.layers.window import Window
from convdkm.numerics import mix
from convdkm.predicting.kernels import EARLIER, described, earlier, rebuilt

Kind = TypeVar("Kind", bound="type[Folded]")
Blocks = tuple[Tensor, Tensor]

KINDS: dict[str, Callable[..., Folded]] = {}
"""The modules that a file may name."""

_POINT_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Folded(nn.Module):
    """A module made of constants.

    Everything it is made of is an argument of its constructor of the same name: tensors are
    buffers, other modules are parts, and the rest, named in ``settings``, are plain values. So it
    can be described in JSON and made again.

    Attributes:
        settings: names of the plain values.
        numbers: those of them that a compiled program may take as tensors, unless they are 1.
        obstacle: why it cannot be written to a file; None if it can.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    obstacle: str | None = None

    def constants(self, **tensors: Tensor | None) -> None:
        """Keep these tensors as buffers."""
        for name, value in tensors.items():
            self.register_buffer(name, None if value is None else value.detach().contiguous())

    def description(self) -> dict[str, Any]:
        """What :func:`build` needs besides the tensors, as plain values."""
        plain = {name: _plain(getattr(self, name)) for name in self.settings}
        parts = {
            name: part.description() if isinstance(part, Folded) else described(part)
            for name, part in self.named_children()
            if isinstance(part, (Folded, Kernel))
        }
        return {"kind": type(self).__name__, "settings": plain, "parts": parts}


class FoldedList(Folded):
    """Modules in order, by name."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def in_order(self) -> list[Folded]:
        """The modules."""
        return [part for part in self.children() if isinstance(part, Folded)]


def known(kind: Kind) -> Kind:
    """Let files name this class of modules."""
    KINDS[kind.__name__] = kind
    return kind


known(FoldedList)


def build(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = ""
) -> nn.Module:
    """The module of a description, with the tensors whose names begin with ``prefix``."""
    if description["kind"] == "kernel":
        return rebuilt(description, tensors, prefix)
    if description["kind"] in EARLIER:
        return earlier(description)
    kind = KINDS[description["kind"]]
    parts = {
        name: build(part, tensors, f"{prefix}{name}.")
        for name, part in description["parts"].items()
    }
    plain = {name: _value(value) for name, value in description["settings"].items()}
    own = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    }
    return kind(**parts, **plain, **own)


def _plain(value: Any) -> Any:
    if isinstance(value, Window):
        fields = ("size", "stride", "dilation", "padding")
        return {"window": {name: getattr(value, name) for name in fields}}
    return value


def _value(value: Any) -> Any:
    if isinstance(value, Mapping) and "window" in value:
        window = value["window"]
        pads = tuple((before, after) for before, after in window["padding"])
        size, stride, dilation = (tuple(window[name]) for name in ("size", "stride", "dilation"))
        return Window(size, stride, dilation, pads)
    return tuple(value) if isinstance(value, list) else value


def tracing() -> bool:
    """Whether ``torch.export`` or ``torch.compile`` follows along: then plain operations only."""
    return torch.compiler.is_compiling()


def product(matrix: Tensor, maps: Tensor, offset: Tensor | None = None) -> Tensor:
    """:func:`convdkm.numerics.mix`; a convolution of one place where a program is exported."""
    space = maps.ndim - 2
    if not tracing() or not space or matrix.ndim == 1:
        return mix(matrix, maps, offset)
    return _POINT_CONVOLUTIONS[space](maps, matrix.reshape(*matrix.shape, *(1,) * space), offset)


def convolved(window: Window, maps: Tensor, weight: Tensor) -> Tensor:
    """:meth:`convdkm.layers.Window.convolve`, in a form that can be exported."""
    if tracing() and window.is_point:
        strides = tuple(slice(None, None, step) for step in window.stride)
        return product(weight.flatten(1), maps[(slice(None), slice(None), *strides)])
    return window.convolve(maps, weight)
