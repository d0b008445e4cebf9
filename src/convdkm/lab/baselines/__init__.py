"""Other methods for the same images: those of the paper's Table 3, and the CNN a user would pick.

Each is a class with ``fit`` and ``predict``; ``convdkm compare`` runs them side by side. The names
stand in ``__init__.pyi`` and are loaded when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
