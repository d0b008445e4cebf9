"""Data sets as tensors, the whitening that kernel methods want, and augmentation.

The names stand in ``__init__.pyi`` and are loaded when they are first used, so that listing the
known data sets costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
