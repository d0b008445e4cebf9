"""convdkm: convolutional deep kernel machines.

A deep kernel machine is an infinitely wide deep Gaussian process that still learns
representations: its parameters are the Gram matrices of its layers. See Milsom, Anson and
Aitchison, "Convolutional Deep Kernel Machines" (ICLR 2024).

The public names stand in ``__init__.pyi``. Each is loaded when it is first used, so that
``import convdkm`` alone does not load torch.
"""

from typing import TYPE_CHECKING, Any

import lazy_loader

from convdkm.training import page as _page

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)


def _write_page(*arguments: Any) -> "Path":
    from convdkm.report.write import report_run

    return report_run(*arguments)


_page.writer = _write_page  # training does not know the report, which is above it
