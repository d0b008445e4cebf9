"""How kernels are known by name: to configurations, flags and estimators, without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from convdkm.errors import InvalidInputError

if TYPE_CHECKING:
    from convdkm.kernels.base import Kernel


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
        chosen = self[name]
        given = {each: values.get(each, option.default) for each, option in self.options.items()}
        self._refuse_others(name, given)
        module, _, kind = chosen.place.partition(":")
        made = getattr(import_module(f"convdkm.kernels.{module}"), kind)
        arguments = {option.argument: given[option.name] for option in chosen.options}
        kernel: Kernel = made(**arguments, **chosen.given)
        return kernel

    def _refuse_others(self, name: str, given: Mapping[str, Any]) -> None:
        wrong = [
            option
            for option in self.options.values()
            if option.refused
            and option not in self[name].options
            and given[option.name] != option.default
        ]
        if not wrong:
            return
        first, *others = (each for each, kernel in self.items() if wrong[0] in kernel.options)
        also = f" (and to {', '.join(others)})" if others else ""
        names = " and ".join(option.name for option in wrong)
        raise InvalidInputError(
            f"{names} belong{'s' * (len(wrong) < 2)} to the {first} kernel{also}, and the kernel is"
            f" {name!r}; choose another preset, or leave them out"
        )
