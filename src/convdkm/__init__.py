"""convdkm: convolutional deep kernel machines.

A deep kernel machine is an infinitely wide deep Gaussian process that still learns
representations: its parameters are the Gram matrices of its layers. See Milsom, Anson and
Aitchison, "Convolutional Deep Kernel Machines" (ICLR 2024).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from convdkm.training import page as _page

if TYPE_CHECKING:
    from pathlib import Path

    from convdkm.architectures import PUBLISHED, fully_connected, resnet, resnet8, resnet20
    from convdkm.errors import (
        ConvDKMError,
        GramError,
        InvalidInputError,
        NotFiniteError,
        NotInitialisedError,
        NotPositiveDefiniteError,
        NumericalError,
    )
    from convdkm.estimators import ConvDKMClassifier, DKMClassifier, DKMRegressor
    from convdkm.gram import Gram
    from convdkm.head import GPHead, Marginals
    from convdkm.kernels import (
        Angular,
        ArcCosine,
        ConvexCombination,
        Isotropic,
        Kernel,
        Linear,
        Matern,
        NormalisedGaussian,
        NormalisedPolynomial,
        Product,
        RationalQuadratic,
        Scaled,
        SquaredExponential,
        Sum,
    )
    from convdkm.layers import (
        AveragePool,
        Centre,
        Conv,
        Flatten,
        GlobalAveragePool,
        GramLayer,
        Input,
        Layer,
        LayerKL,
        Mix,
        Noise,
        Norm,
        PatchInput,
        Plan,
        Sequential,
        Skip,
        VectorInput,
    )
    from convdkm.likelihoods import Categorical, Gaussian, Likelihood
    from convdkm.model import DeepKernelMachine, ModelPlan, Objective
    from convdkm.predicting import Predictor, load_predictor
    from convdkm.prediction import ClassPrediction, Prediction, RealPrediction
    from convdkm.training.fit import fit, resume
    from convdkm.training.gradients import RecordedGradients
    from convdkm.training.run import Run

__version__ = "0.1.0"

__all__ = [
    "PUBLISHED",
    "Angular",
    "ArcCosine",
    "AveragePool",
    "Categorical",
    "Centre",
    "ClassPrediction",
    "Conv",
    "ConvDKMClassifier",
    "ConvDKMError",
    "ConvexCombination",
    "DKMClassifier",
    "DKMRegressor",
    "DeepKernelMachine",
    "Flatten",
    "GPHead",
    "Gaussian",
    "GlobalAveragePool",
    "Gram",
    "GramError",
    "GramLayer",
    "Input",
    "InvalidInputError",
    "Isotropic",
    "Kernel",
    "Layer",
    "LayerKL",
    "Likelihood",
    "Linear",
    "Marginals",
    "Matern",
    "Mix",
    "ModelPlan",
    "Noise",
    "Norm",
    "NormalisedGaussian",
    "NormalisedPolynomial",
    "NotFiniteError",
    "NotInitialisedError",
    "NotPositiveDefiniteError",
    "NumericalError",
    "Objective",
    "PatchInput",
    "Plan",
    "Prediction",
    "Predictor",
    "Product",
    "RationalQuadratic",
    "RealPrediction",
    "RecordedGradients",
    "Run",
    "Scaled",
    "Sequential",
    "Skip",
    "SquaredExponential",
    "Sum",
    "VectorInput",
    "__version__",
    "fit",
    "fully_connected",
    "load_predictor",
    "resnet",
    "resnet8",
    "resnet20",
    "resume",
]

_MODULES = {
    "convdkm.architectures": (
        "PUBLISHED",
        "fully_connected",
        "resnet",
        "resnet8",
        "resnet20",
    ),
    "convdkm.errors": (
        "ConvDKMError",
        "GramError",
        "InvalidInputError",
        "NotFiniteError",
        "NotInitialisedError",
        "NotPositiveDefiniteError",
        "NumericalError",
    ),
    "convdkm.estimators": ("ConvDKMClassifier", "DKMClassifier", "DKMRegressor"),
    "convdkm.predicting": ("Predictor", "load_predictor"),
    "convdkm.training.gradients": ("RecordedGradients",),
    "convdkm.gram": ("Gram",),
    "convdkm.head": (
        "GPHead",
        "Marginals",
    ),
    "convdkm.kernels": (
        "Angular",
        "ArcCosine",
        "ConvexCombination",
        "Isotropic",
        "Kernel",
        "Linear",
        "Matern",
        "NormalisedGaussian",
        "NormalisedPolynomial",
        "Product",
        "RationalQuadratic",
        "Scaled",
        "SquaredExponential",
        "Sum",
    ),
    "convdkm.layers": (
        "AveragePool",
        "Centre",
        "Conv",
        "Flatten",
        "GlobalAveragePool",
        "GramLayer",
        "Input",
        "Layer",
        "LayerKL",
        "Mix",
        "Noise",
        "Norm",
        "PatchInput",
        "Plan",
        "Sequential",
        "Skip",
        "VectorInput",
    ),
    "convdkm.likelihoods": (
        "Categorical",
        "Gaussian",
        "Likelihood",
    ),
    "convdkm.model": (
        "DeepKernelMachine",
        "ModelPlan",
        "Objective",
    ),
    "convdkm.training.fit": ("fit", "resume"),
    "convdkm.training.run": ("Run",),
    "convdkm.prediction": (
        "ClassPrediction",
        "Prediction",
        "RealPrediction",
    ),
}
_SUBMODULES = (
    "data",
    "estimators",
    "exact",
    "insight",
    "kernels",
    "lab",
    "layers",
    "report",
    "testing",
    "training",
)
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def _write_page(run: "Run", output: "str | Path | None", data: Any, images: int) -> "Path":
    from convdkm.report.write import report_run

    return report_run(run, output, data, images)


_page.writer = _write_page  # training does not know the report, which is above it


def __getattr__(name: str) -> Any:
    """Load a public name where it is first used: ``import convdkm`` alone does not load torch."""
    if name in _SUBMODULES:
        return import_module(f"convdkm.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'convdkm' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_SUBMODULES))
