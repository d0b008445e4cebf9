"""How often a machine is worked through: a step that is played from a record does without."""

from contextlib import contextmanager

from convdkm.model import DeepKernelMachine


@contextmanager
def counted_passes(model):
    """A list that has one entry more for every pass over the machine inside the block."""
    made, original = [], DeepKernelMachine.objective_of_checked

    def counted(self, *arguments, **options):
        if self is model:
            made.append(None)
        return original(self, *arguments, **options)

    DeepKernelMachine.objective_of_checked = counted
    try:
        yield made
    finally:
        DeepKernelMachine.objective_of_checked = original


def passes_of(model, function, *arguments):
    """What a function returns, and how many passes over the machine it made."""
    with counted_passes(model) as made:
        return function(*arguments), len(made)
