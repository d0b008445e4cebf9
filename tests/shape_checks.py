"""Shapes that annotations name are checked while tests run; in production they are only read.

A module that says ``if TYPE_CHECKING: from jaxtyping import Float`` annotates a tensor as
``Float[Tensor, "N P *space"]``: within one call an axis of one name has one size. Here such modules
get those names for real, and every function that uses them is wrapped in jaxtyping's check, by
beartype, before anybody can import it. What ``torch.compile`` and ``torch.export`` follow is left
alone.
"""

import functools
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from types import FunctionType

import jaxtyping
import torch
from beartype import BeartypeConf, beartype

NAMES = ("Float", "Float64", "Int")
_CONF = BeartypeConf(is_pep484_tower=True)  # an int will do for a float


def install():
    """Check every module of the package that is imported from now on."""
    assert not any(name.startswith("convdkm.") for name in sys.modules)
    sys.meta_path.insert(0, _Finder)


class _Finder(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if not fullname.startswith("convdkm."):
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        for name in NAMES:
            vars(module).setdefault(name, getattr(jaxtyping, name))
        _check_all(module, module.__name__)
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                _check_all(value, module.__name__)


def _check_all(owner, module):
    for name, value in list(vars(owner).items()):
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not isinstance(function, FunctionType) or function.__module__ != module:
            continue
        if any(f"{name}[" in str(note) for note in _notes(function) for name in NAMES):
            checked = _checked(function)
            setattr(owner, name, checked if function is value else type(value)(checked))


def _notes(function):
    return function.__annotations__.values()


def _checked(function):
    checked = jaxtyping.jaxtyped(function, typechecker=beartype(conf=_CONF))

    @functools.wraps(function)
    def either(*args, **kwargs):
        chosen = function if torch.compiler.is_compiling() else checked
        return chosen(*args, **kwargs)

    return either
