"""Training: the loop, its records and checkpoints, and runs as folders.

The names stand in ``__init__.pyi`` and are loaded when they are first used, so that the command
line starts quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
