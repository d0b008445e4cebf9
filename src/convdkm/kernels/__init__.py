"""Kernels: Gram → Gram, entry by entry, with no knowledge of space.

A new kernel is a module of this folder, a line of ``__init__.pyi`` and an entry of
:data:`KERNELS`, which configurations, flags and estimators read. The command line does so without
PyTorch: names are loaded when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
