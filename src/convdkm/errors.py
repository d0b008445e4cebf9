"""What can go wrong, as types a caller can catch.

Every error of the library is a :class:`ConvDKMError`. It knows where in the model it happened: as
it travels up through nested layers each of them adds its own name (:func:`located`), so that the
message a user reads names the layer by the same path as ``model.named_modules()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConvDKMError(Exception):
    """Base class of the library's errors; ``path`` is the layer that raised it, outermost first.

    Where layers are worked out in one go, ``part`` says which of them it was.
    """

    part: int = 0

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.path: tuple[str, ...] = ()

    @property
    def layer(self) -> str:
        """Dotted name of the layer, as in ``model.named_modules()``; empty outside a model."""
        return ".".join(self.path)

    def __str__(self) -> str:
        return f"in layer '{self.layer}': {self.message}" if self.path else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.__dict__))


def _rebuild(kind: type[ConvDKMError], state: dict[str, object]) -> ConvDKMError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["message"])
    error.__dict__.update(state)
    return error


class InvalidInputError(ConvDKMError, ValueError):
    """Data, labels or options that the model cannot take."""


class CannotWriteError(ConvDKMError, OSError):
    """A file that cannot be written: a full disk, a quota, a folder that is read-only."""


class GramError(ConvDKMError, ValueError):
    """A Gram whose blocks do not fit each other, or do not fit the layer they were given to."""


class NotInitialisedError(ConvDKMError, RuntimeError):
    """A layer whose state comes from data was used before ``initialise``."""


class NumericalError(ConvDKMError, ArithmeticError):
    """A matrix that cannot be factorised."""


class NotFiniteError(NumericalError):
    """NaN or infinity reached a matrix factorisation (size P), or the objective (size 1)."""

    def __init__(self, what: str, dtype: object, size: int, bad: int) -> None:
        matrix = f"{what} ({size}×{size}, {dtype}) has {bad} NaN or infinite entries"
        super().__init__(
            f"{matrix if size > 1 else f'{what} ({dtype}) is NaN or infinite'}; the training has"
            " diverged or the parameters were damaged. Try a smaller learning rate, or restart"
            " from an earlier checkpoint."
        )
        self.what, self.dtype, self.size, self.bad = what, dtype, size, bad


class NotPositiveDefiniteError(NumericalError):
    """A matrix that is not positive definite even after bounded jitter was added."""

    def __init__(
        self, what: str, dtype: object, size: int, smallest_eigenvalue: float, jitter: float
    ) -> None:
        super().__init__(
            f"{what} ({size}×{size}, {dtype}) is not positive definite: its smallest eigenvalue is"
            f" {smallest_eigenvalue:.3g}, and adding jitter up to {jitter:.3g} to the diagonal did"
            " not help. Are inducing points duplicated, or is a kernel not a valid kernel?"
        )
        self.what, self.dtype, self.size = what, dtype, size
        self.smallest_eigenvalue, self.jitter = smallest_eigenvalue, jitter


@contextmanager
def located(*names: str) -> Iterator[None]:
    """Prepend a name to the path of any library error raised inside the block.

    Args:
        names: the layer that is at work, or those that are at work in one go.
    """
    try:
        yield
    except ConvDKMError as error:
        name = names[min(error.part, len(names) - 1)]
        error.path, error.part = (*filter(None, name.split(".")), *error.path), 0
        raise
