"""Other methods for the same images: those of the paper's Table 3, and the CNN a user would pick.

Each is a class with ``fit`` and ``predict``; ``convdkm compare`` runs them side by side.
"""

from convdkm.rivals.base import Rival

__all__ = ["Rival"]
