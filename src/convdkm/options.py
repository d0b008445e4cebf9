"""The options of a machine: their names, defaults, values and meanings, once.

:func:`convdkm.resnet`, the configuration of runs, the flags of the command line, the presets and
the estimators all read them here. The defaults are the paper's base model. A field's description is
its help text.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    create_model,
)

from convdkm.choices import (
    Border,
    Centring,
    Covariance,
    DataNorm,
    DataScale,
    Expectation,
    HeadKL,
    InducingChoice,
    InducingNorm,
    InducingScale,
    KLForm,
    LikelihoodName,
    MixingInit,
    Parameterisation,
    Statistics,
    Top,
)
from convdkm.errors import InvalidInputError
from convdkm.kernels import KERNELS
from convdkm.kernels.registry import KernelName, Option
from convdkm.storage.text import shortened

PositiveInt = Annotated[int, Field(gt=0)]


def _unlisted(value: Any) -> Any:
    """A string ``16,32,64`` or ``16/32/64`` as a list; one number as a list of one."""
    if isinstance(value, str):
        return [part.strip() for part in value.replace("/", ",").split(",") if part.strip()]
    return [value] if isinstance(value, (int, float)) else value


def _number_or_list(value: Any) -> Any:
    if isinstance(value, str) and ("," in value or "/" in value):
        return _unlisted(value)
    return value


def _centring(value: Any) -> Any:
    """``true`` and ``false`` of earlier versions, which centred shortcuts too."""
    if isinstance(value, bool) or value in ("true", "false"):
        return "all" if value in (True, "true") else "none"
    return value


def _without_infinity(nu: float | tuple[float, ...]) -> Any:
    """ν for JSON, which has no infinity."""
    if isinstance(nu, tuple):
        return [_without_infinity(each) for each in nu]
    return "inf" if math.isinf(nu) else nu


Integers = Annotated[tuple[PositiveInt, ...], BeforeValidator(_unlisted)]
Rates = Annotated[tuple[float, ...], BeforeValidator(_unlisted)]
Nu = Annotated[
    Annotated[float, Field(ge=0)] | tuple[Annotated[float, Field(ge=0)], ...],
    BeforeValidator(_number_or_list),
    PlainSerializer(_without_infinity, when_used="json"),
]
Kind = TypeVar("Kind", bound="Options")


class Options(BaseModel):
    """Base of what holds options: immutable, and no unknown keys."""

    # Checks are compiled when they are first needed: the command line's help does without.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def checked(
        cls: type[Kind], values: Mapping[str, Any], source: str = "", depth: int = 0
    ) -> Kind:
        """From values, by name; errors name the option and the source.

        Args:
            source: of the values, for messages.
            depth: sections around an option.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InvalidInputError(
                f"{source}{': ' * bool(source)}{_readable(error, depth, cls.model_fields)}"
            ) from None


class _Shape(Options):
    inducing: Integers = Field((128, 256, 512), description="inducing points of every stage")
    stem: PositiveInt | None = Field(
        None, description="inducing points of the input and the layer after it; as in stage 1"
    )
    blocks: Integers = Field((3, 3, 3), description="residual blocks of every stage, or of all")
    strides: Integers | None = Field(
        None, description="of the first block of every stage, or of all; 1,2,2,… by default"
    )
    kernel_size: PositiveInt = Field(3, description="side of the patches and convolutions")
    input_stride: PositiveInt = Field(1, description="stride of the input patches")
    nu: Nu = Field(1.0, description="weight of the Gram layers' KL, 0 to inf; one, or one each")
    kernel: KernelName = Field("arc-cosine", description="of every layer")


def _kernel_field(option: Option) -> Any:
    kind = Rates if option.kind == tuple[float, ...] else option.kind
    kind = kind if option.above is None else Annotated[kind, Field(gt=option.above)]
    kind = kind | None if option.default is None else kind
    return kind, Field(option.default, description=option.description)


if TYPE_CHECKING:
    _WithKernel = _Shape
else:
    _WithKernel = create_model(
        "_WithKernel",
        __base__=_Shape,
        **{name: _kernel_field(option) for name, option in KERNELS.options.items()},
    )


class MachineOptions(_WithKernel):
    """What a residual convolutional machine is made of, and its kernel."""

    jitter: Annotated[float, Field(ge=0)] = Field(
        0.0, description="relative and absolute white noise before and after every kernel"
    )
    jitter_angles: bool = Field(
        False,
        description="the jitter before a kernel enters the inducing block and the angles alone, not"
        " the variances of images",
    )
    inducing_norm: InducingNorm = Field("batch", description="normalisation of the inducing block")
    data_norm: DataNorm = Field("batch", description="normalisation of the train/test block")
    inducing_scale: InducingScale = Field("batch", description="scaling of the inducing block")
    data_scale: DataScale = Field("batch", description="scaling of the train/test block")
    statistics: Statistics = Field(
        "running", description="what normalisation uses in evaluation: averages, or the batch"
    )
    centre: Annotated[Centring, BeforeValidator(_centring)] = Field(
        "none",
        description="centre the Gram of every layer before it is normalised; all: those of"
        " shortcuts too, whose incoming Gram is centred already",
    )
    border: Border = Field("zero", description="what the variance of a pixel is at the border")
    inducing_choice: InducingChoice = Field(
        "random",
        description="how the inducing patches are chosen from those of the images: at random,"
        " such that they differ, or as ± the leading eigenvectors of their covariance",
    )
    interior_patches: bool = Field(
        False, description="draw inducing patches that lie wholly inside an image"
    )
    mixing: MixingInit = Field(
        "random",
        description="how the mixing weights C start: at random, from real patches, or such that"
        " inducing points are passed on",
    )
    mixing_parameterisation: Parameterisation = Field(
        "direct", description="learn C itself, or relative to the incoming Gram"
    )
    divide_mixing: bool = Field(
        False, description="learn √P_i C, and divide by √P_i of the incoming Gram; not C"
    )
    gram_parameterisation: Parameterisation = Field(
        "direct", description="learn G_ii itself, or relative to K_ii"
    )
    gram_scale: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Gram layers start at this times K_ii"
    )
    learn_gram_scale: bool = Field(False, description="learn a factor of every Gram as well")
    divide_gram: bool = Field(False, description="learn R with G_ii = R Rᵀ / P_i, not R Rᵀ")
    full_gram: bool = Field(False, description="learn a square R, and not its lower triangle alone")
    gram_samples: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="normal vectors that every Gram is sampled from in training, as a share of P_i;"
        " 0 for no sampling",
    )
    gram_noise: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="what is added to the diagonal of every learned or sampled Gram, times"
        " gram_scale",
    )
    kl: KLForm = Field(
        "exact", description="KL of Gram layers and head: itself, or to second order"
    )
    skip_weight: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="share of the block in the convex combination of a skip"
    )
    learn_skip: bool = Field(False, description="learn that share")
    top: Top = Field("gap", description="top layer")
    likelihood: LikelihoodName = Field("categorical", description="of the labels")
    expectation: Expectation = Field(
        "nodes", description="the nodes of an integral, or fresh random samples"
    )
    samples: PositiveInt | None = Field(
        None, description="number of samples or nodes; 1000 or 64 by default"
    )
    noise: Annotated[float, Field(gt=0)] = Field(
        1.0, description="likelihood 'gaussian': variance of the noise, to start with"
    )
    learn_noise: bool = Field(True, description="likelihood 'gaussian': learn that variance")
    head_parameterisation: Parameterisation = Field(
        "direct", description="learn μ and A themselves, or relative to K_ii"
    )
    head_covariance: Covariance = Field("shared", description="one A, or one for each class")
    head_kl: HeadKL = Field("sum", description="head's KL: sum over the classes, or mean")

    @property
    def fixing_places(self) -> str | None:
        """An option by which the machine has parameters or statistics for every place, if any."""
        if self.top.startswith("linear"):
            return f"top={self.top!r}"
        for name in ("data_norm", "data_scale"):
            if getattr(self, name) == "location":
                return f"{name}='location'"
        return None

    def with_lists_of_stages(self, names: Iterable[str]) -> MachineOptions:
        """The same, with lists as long as that of the inducing points: cut, or their last repeated.

        One number, which is for all stages, stays as it is.
        """
        count, changes = len(self.inducing), {}
        for name in names:
            values = getattr(self, name)
            if values is not None and len(values) > 1:
                changes[name] = values[:count] + values[-1:] * (count - len(values))
        return self.model_copy(update=changes)

    @property
    def stages(self) -> list[tuple[int, int, int]]:
        """Inducing points, residual blocks and stride of every stage."""
        count = len(self.inducing)
        strides = (1, *(2,) * (count - 1)) if self.strides is None else self.strides
        blocks, strides = (
            each * count if len(each) == 1 else each for each in (self.blocks, strides)
        )
        if not count == len(blocks) == len(strides) or not count:
            raise InvalidInputError(
                f"there are {count} stages, by the numbers of inducing points, but {len(blocks)}"
                f" blocks and {len(strides)} strides: give one number for each stage, or one for"
                " all"
            )
        return list(zip(self.inducing, blocks, strides, strict=True))


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean …?``, or nothing where nothing is near."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def _readable(error: ValidationError, depth: int, known: Iterable[str]) -> str:
    seen: dict[str, str] = {}
    for problem in error.errors():
        name = str(problem["loc"][depth]) if len(problem["loc"]) > depth else ""
        message = problem["msg"].removeprefix("Value error, ")
        message = re.sub(r", (unable to parse|got a number with).*", "", message)
        for theirs, ours in _WORDING.items():
            message = message.replace(theirs, ours)
        if problem["type"] == "extra_forbidden":
            seen[name] = f"there is no option {name!r}.{nearest(name, known)}"
            continue
        given = problem.get("input")
        shown = "" if isinstance(given, (dict, BaseModel)) else f", got {shortened(repr(given))}"
        seen.setdefault(name, f"{name} {message}{shown}".strip())
    return "; ".join(seen.values())


_WORDING = {
    "Input should be": "must be",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
