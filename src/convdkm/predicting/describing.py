"""Modules in files: their class, their plain attributes, their tensors and the modules inside.

Operations, kernels and likelihoods are all described in the same way. A file names their classes,
which must be known to the program that reads it: the library's, or those of the user's own that
have been imported. Nothing is imported for the sake of a file, and nothing in it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from convdkm.errors import InvalidInputError
from convdkm.kernels.base import Positive
from convdkm.layers import Input, Layer, Window
from convdkm.likelihoods import Likelihood
from convdkm.likelihoods.softmax import NormalSoftmax
from convdkm.ops.base import MODULE, Operation

_BASES = (Operation, Layer, Input, Likelihood)
_PARTS = (Positive, nn.ModuleList, NormalSoftmax)
_LATER = frozenset({"compiled", "obstacle"})
EARLIER: dict[str, Callable[..., Any]] = {}
"""What makes a part from the arguments of one that only earlier versions had, by its name."""

_PLAIN = (bool, int, float, str, type(None), Window)


class CannotExportError(InvalidInputError):
    """A predictor with a part that exists in Python only; the message says which, and why."""


def described(module: nn.Module, place: str = "") -> dict[str, Any]:
    """What :func:`rebuilt` needs besides the tensors, as plain values."""
    kind = type(module)
    refused = f"this machine cannot leave Python: its part '{place}' cannot be written to a file"
    if not issubclass(kind, _BASES + _PARTS):
        raise CannotExportError(
            f"{refused}: it is a {kind.__name__}, and neither a layer, nor an input or a likelihood"
        )
    tensors = {**module._parameters, **module._buffers}
    kept = [name for name in tensors if name not in module._non_persistent_buffers_set]
    plain: dict[str, Any] = {name: None for name in kept if tensors[name] is None}
    for name, value in vars(module).items():
        if name in MODULE or name in _LATER or name in getattr(kind, "unsaved", ()):
            continue
        if not _is_plain(value):
            raise CannotExportError(
                f"{refused}: {kind.__name__} has an attribute {name!r} that is a"
                f" {type(value).__name__}, where a file takes tensors, modules, numbers, text and"
                " tuples of them"
            )
        plain[name] = _as_json(value)
    return {
        "kind": _name(kind),
        "settings": plain,
        "tensors": [name for name in kept if tensors[name] is not None],
        "parts": {
            name: None if part is None else described(part, f"{place}.{name}" if place else name)
            for name, part in module._modules.items()
        },
    }


def rebuilt(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = ""
) -> nn.Module:
    """The module of a description, with the tensors whose names begin with ``prefix``."""
    settings = {name: _from_json(value) for name, value in description["settings"].items()}
    parts = {
        name: None if part is None else rebuilt(part, tensors, f"{prefix}{name}.")
        for name, part in description["parts"].items()
    }
    inside = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    values = {name: value for name, value in inside.items() if "." not in name}
    if "tensors" not in description and description["kind"] in EARLIER:
        made: nn.Module = EARLIER[description["kind"]](**parts, **settings, **values)
        return made
    kind = _class(str(description.get("class", description["kind"])))
    if kind is NormalSoftmax:
        return NormalSoftmax(**settings)
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name in getattr(kind, "added", ()):
        if name not in values and name not in parts:
            settings.setdefault(name, None)
    for name, value in settings.items():
        setattr(module, name, value)
    for name, part in parts.items():
        module.register_module(name, part)
    for name in description.get("tensors", values):
        module.register_buffer(name, values[name])
    return module.eval()


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _as_json(value: Any) -> Any:
    if isinstance(value, Window):
        return {"window": asdict(value)}
    return list(map(_as_json, value)) if isinstance(value, (tuple, list)) else value


def _from_json(value: Any) -> Any:
    """A plain value as it was; lists are tuples."""
    if isinstance(value, Mapping):
        return Window(**{name: _from_json(each) for name, each in value["window"].items()})
    return tuple(map(_from_json, value)) if isinstance(value, (list, tuple)) else value


def _name(kind: type) -> str:
    """A name that is unique; the library's classes have no module, which may change."""
    if kind.__module__.startswith(("convdkm.", "torch.")):
        return kind.__qualname__
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type[nn.Module]:
    known = {_name(kind): kind for kind in (*_PARTS, *_derived(*_BASES))}
    if name in known:
        return known[name]
    module, _, short = name.rpartition(":")
    alike = [kind for full, kind in known.items() if module and full.endswith(f":{short}")]
    if len(alike) == 1:  # the same class, imported from elsewhere
        return alike[0]
    raise InvalidInputError(
        f"the file has the kernel or layer {short}, which is not known here"
        + (f"; import it first, from {module} where the file was written" if module else "")
    )


def _derived(*kinds: type[nn.Module]) -> Iterator[type[nn.Module]]:
    for kind in kinds:
        for derived in kind.__subclasses__():
            yield derived
            yield from _derived(derived)
