"""convdkm: convolutional deep kernel machines.

A deep kernel machine is an infinitely wide deep Gaussian process that still learns
representations: its parameters are the Gram matrices of its layers. See Milsom, Anson and
Aitchison, "Convolutional Deep Kernel Machines" (ICLR 2024).
"""

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
from convdkm.gram import Gram
from convdkm.head import GPHead, Marginals
from convdkm.kernels import (
    ArcCosine,
    ConvexCombination,
    Isotropic,
    Kernel,
    Linear,
    Matern,
    NormalisedGaussian,
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
from convdkm.model import DeepKernelMachine, ModelPlan, Objective, Predictor
from convdkm.prediction import ClassPrediction, Prediction, RealPrediction

__version__ = "0.1.0"

__all__ = [
    "PUBLISHED",
    "ArcCosine",
    "AveragePool",
    "Categorical",
    "Centre",
    "ClassPrediction",
    "Conv",
    "ConvDKMError",
    "ConvexCombination",
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
    "Scaled",
    "Sequential",
    "Skip",
    "SquaredExponential",
    "Sum",
    "VectorInput",
    "__version__",
    "fully_connected",
    "resnet",
    "resnet8",
    "resnet20",
]
