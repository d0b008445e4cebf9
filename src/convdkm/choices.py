"""The named choices of layers and models: one list of each, for the code and the command line."""

from typing import Literal

InducingNorm = Literal["none", "batch", "local"]
DataNorm = Literal["none", "batch", "image", "location", "local"]
InducingScale = Literal["none", "batch", "local"]
DataScale = Literal["none", "batch", "location"]
Statistics = Literal["running", "batch"]
Centring = Literal["none", "layers", "all"]
Parameterisation = Literal["direct", "whitened"]
MixingInit = Literal["random", "patches", "identity"]
InducingChoice = Literal["random", "distinct", "eigenvectors"]
Border = Literal["zero", "inside"]
Covariance = Literal["shared", "per-output"]
WhiteningKind = Literal["zca", "zca-paper", "zca-published", "standardise", "scale", "none"]
WhiteningChoice = Literal["auto", WhiteningKind, "auto-paper", "auto-published"]
"""``auto…`` is ``zca…`` where it fits, see :func:`convdkm.data.whitening.chosen_whitening`."""
AugmentStage = Literal["before-whitening", "after-whitening"]
ViewsName = Literal["one", "flip", "shifts", "crops"]
"""What a machine sees of an image at prediction, see :class:`convdkm.views.Views`."""
Top = Literal["gap", "linear", "gap+mix", "linear+mix"]
LikelihoodName = Literal["categorical", "gaussian"]
Expectation = Literal["nodes", "monte-carlo"]
GaussianExpectation = Literal["closed-form", "monte-carlo"]
HeadKL = Literal["sum", "mean"]
KLForm = Literal["exact", "taylor"]
Storage = Literal["float64", "float32", "float16", "bfloat16"]
"""The precision of a machine in a file, see :meth:`convdkm.Run.save`."""
