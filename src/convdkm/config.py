"""What a run is made of, as data: checked, written to YAML, and shown as command-line options.

The defaults are the paper's base model and recipe. A field's description is its help text; names
are unique over the three sections, so that each is also a flag (``--learning-rate``).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from convdkm.choices import (
    Border,
    Covariance,
    DataNorm,
    DataScale,
    Expectation,
    HeadKL,
    InducingChoice,
    InducingNorm,
    InducingScale,
    LikelihoodName,
    MixingInit,
    Parameterisation,
    Statistics,
    Top,
    WhiteningChoice,
)
from convdkm.errors import InvalidInputError
from convdkm.kernels import KERNELS, KernelName
from convdkm.kernels.registry import Option
from convdkm.storage.text import name_text, shortened, writable
from convdkm.storage.yaml_file import read_yaml

Patches = Literal["whitened", "standardised", "raw"]
AugmentStage = Literal["before-whitening", "after-whitening"]
ScheduleName = Literal["steps", "one-cycle", "cosine", "constant"]
Precision = Literal["float32", "float64"]

PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _unlisted(value: Any) -> Any:
    """A string ``16,32,64`` or ``16/32/64`` as a list; one number as a list of one."""
    if isinstance(value, str):
        return [part.strip() for part in value.replace("/", ",").split(",") if part.strip()]
    return [value] if isinstance(value, (int, float)) else value


def _number_or_list(value: Any) -> Any:
    if isinstance(value, str) and ("," in value or "/" in value):
        return _unlisted(value)
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


class Section(BaseModel):
    """Base of the configuration's sections: immutable, and no unknown keys."""

    # Checks are compiled when they are first needed: the command line's help does without.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class DataConfig(Section):
    """Which images, and what is done to them before the model sees them."""

    dataset: str = Field("digits", description="name of a data set, or path of a folder or .npz")
    data_dir: str | None = Field(
        None, description="where data sets are; CONVDKM_DATA or a folder of your own by default"
    )
    image_size: PositiveInt | None = Field(None, description="resize images to this side")
    channels: Literal[1, 3] | None = Field(
        None, description="1 for grey or 3 for colour; as the files are by default"
    )
    train_size: PositiveInt | None = Field(
        None, description="use only so many training images, balanced over the classes"
    )
    test_size: PositiveInt | None = Field(None, description="use only so many test images")
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share kept for testing where the data has no test part"
    )
    validation: Fraction = Field(
        0.0, description="share of the training images held out, to choose the best checkpoint by"
    )
    skip_bad: bool = Field(False, description="leave out images that cannot be read")
    whitening: WhiteningChoice = Field(
        "auto",
        description="of the images: ZCA (as published or as in the text), channels to mean 0 and"
        " variance 1, channels to variance 1 alone, or none; auto: zca, or standardise where there"
        " are fewer images than values of an image, or too many values",
    )
    zca_epsilon: Annotated[float, Field(ge=0)] = Field(0.1, description="regulariser of ZCA")
    crop: Annotated[int, Field(ge=0)] = Field(
        4, description="random crops from a margin of zeros this wide; 0 for none"
    )
    flip: bool = Field(True, description="random horizontal flips")
    augment: AugmentStage = Field(
        "before-whitening", description="crop and flip before whitening or after it"
    )
    inducing_patches: Patches = Field(
        "whitened", description="what the inducing patches are drawn from"
    )
    inducing_images: PositiveInt = Field(
        512, description="images, balanced over the classes, that initialisation looks at"
    )

    @field_validator("dataset", "data_dir", mode="before")
    @classmethod
    def _as_text(cls, path: Any) -> Any:
        """A path that is not UTF-8 as text, as ``storage.text.named_path`` understands it."""
        return name_text(path) if isinstance(path, str) and not writable(path) else path


class _Shape(Section):
    inducing: Integers = Field((128, 256, 512), description="inducing points of every stage")
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


class ModelConfig(_WithKernel):
    """The machine: the options of :func:`convdkm.resnet`, and of the kernels it may have."""

    jitter: Annotated[float, Field(ge=0)] = Field(
        0.0, description="relative and absolute white noise before and after every kernel"
    )
    inducing_norm: InducingNorm = Field("batch", description="normalisation of the inducing block")
    data_norm: DataNorm = Field("batch", description="normalisation of the train/test block")
    inducing_scale: InducingScale = Field("batch", description="scaling of the inducing block")
    data_scale: DataScale = Field("batch", description="scaling of the train/test block")
    statistics: Statistics = Field(
        "running", description="what normalisation uses in evaluation: averages, or the batch"
    )
    centre: bool = Field(False, description="centre every Gram before it is normalised")
    border: Border = Field("zero", description="what the variance of a pixel is at the border")
    inducing_choice: InducingChoice = Field(
        "random", description="how the inducing patches are chosen from those of the images"
    )
    mixing: MixingInit = Field("random", description="how the mixing weights C start")
    mixing_parameterisation: Parameterisation = Field(
        "direct", description="learn C itself, or relative to the incoming Gram"
    )
    gram_parameterisation: Parameterisation = Field(
        "direct", description="learn G_ii itself, or relative to K_ii"
    )
    gram_scale: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Gram layers start at this times K_ii"
    )
    learn_gram_scale: bool = Field(False, description="learn a factor of every Gram as well")
    divide_gram: bool = Field(False, description="learn R with G_ii = R Rᵀ / P_i, not R Rᵀ")
    skip_weight: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="share of the block in the convex combination of a skip"
    )
    learn_skip: bool = Field(False, description="learn that share")
    top: Top = Field("gap", description="top layer")
    likelihood: LikelihoodName = Field("categorical", description="of the labels")
    expectation: Expectation = Field(
        "monte-carlo", description="fresh random samples, or the nodes of an integral"
    )
    samples: PositiveInt | None = Field(
        None, description="number of samples or nodes; 1000 or 64 by default"
    )
    head_parameterisation: Parameterisation = Field(
        "direct", description="learn μ and A themselves, or relative to K_ii"
    )
    head_covariance: Covariance = Field("shared", description="one A, or one for each class")
    head_kl: HeadKL = Field("sum", description="head's KL: sum over the classes, or mean")


class TrainingConfig(Section):
    """How the machine is trained, and on what."""

    epochs: PositiveInt = Field(100, description="passes over the training images")
    batch_size: PositiveInt = Field(256, description="images a step, over all processes")
    micro_batch: PositiveInt | None = Field(
        None, description="images that a process works on at a time, to save memory; all by default"
    )
    checkpointing: bool = Field(
        False, description="work residual blocks out again in the backward pass, to save memory"
    )
    compile: bool = Field(
        False, description="compile functions and record steps, where many are worth the wait"
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(0.01, description="Adam's, at its peak")
    betas: Rates = Field((0.8, 0.9), description="Adam's averaging weights")
    schedule: ScheduleName = Field("steps", description="of the learning rate")
    milestones: Rates = Field(
        (0.4, 0.8), description="schedule 'steps': shares of training after which the rate drops"
    )
    decay: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="schedule 'steps': what the rate is multiplied by"
    )
    warmup: Fraction = Field(
        0.3, description="schedules 'one-cycle' and 'cosine': share of training before the peak"
    )
    calibrate: Annotated[int, Field(ge=0)] = Field(
        0, description="training images that running statistics are made exact by, at evaluation"
    )
    evaluate_every: Annotated[int, Field(ge=0)] = Field(
        1, description="epochs between evaluations on the test images; 0: only at the end"
    )
    evaluation_batch: PositiveInt = Field(500, description="images at a time in evaluation")
    checkpoint_minutes: Annotated[float, Field(ge=0)] = Field(
        5.0, description="minutes between checkpoints within an epoch; one is kept at every epoch"
    )
    timeout_minutes: Annotated[float, Field(gt=0)] = Field(
        30.0,
        description="several processes: how long one waits for the others; longer than an"
        " evaluation takes",
    )
    retries: Annotated[int, Field(ge=0)] = Field(
        8, description="failed steps in a row before training gives up"
    )
    precision: Precision = Field("float32", description="of the data path")
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps, …; auto takes what there is")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="of everything that is random")

    @model_validator(mode="after")
    def _check_rates(self) -> TrainingConfig:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are two numbers in [0, 1), got {self.betas}")
        if not all(0 < place <= 1 for place in self.milestones):
            raise ValueError(f"milestones are shares of training in (0, 1], got {self.milestones}")
        return self


class RunConfig(Section):
    """Everything that makes a run."""

    data: DataConfig = Field(default_factory=DataConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "the configuration") -> RunConfig:
        """From nested sections or flat options, or both; errors name the key and the source."""
        try:
            return cls.model_validate(nested(values, source))
        except ValidationError as error:
            raise InvalidInputError(f"{source}: {_readable(error)}") from None

    def updated(self, values: Mapping[str, Any], source: str = "the options") -> RunConfig:
        """A copy with other values, nested or flat."""
        changes = nested(values, source)
        merged = self.model_dump()
        for section, fields in changes.items():
            merged[section].update(fields)
        return RunConfig.of(merged, source)

    def flat(self) -> dict[str, Any]:
        """Every option by its name."""
        return {name: getattr(getattr(self, section), name) for name, section in SECTION.items()}

    def to_yaml(self) -> str:
        """As text that a person can read and edit, and :meth:`from_file` reads."""
        import yaml

        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_file(cls, path: str | Path) -> RunConfig:
        """From a YAML file; sections may be left out, and so may their names."""
        return cls.of(read_yaml(path), str(path))


SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
}
SECTION = {name: section for section, kind in SECTIONS.items() for name in kind.model_fields}
"""The section that each option belongs to."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean …?``, or nothing where nothing is near."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def nested(values: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Options sorted into their sections; an unknown one is an error with a suggestion."""
    sections: dict[str, dict[str, Any]] = {section: {} for section in RunConfig.model_fields}
    for key, value in values.items():
        if key in sections:
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise InvalidInputError(f"{source}: section {key!r} must hold options")
            for name, entry in value.items():
                _require_known(name, key, source)
                sections[key][name] = entry
            continue
        name = key.replace("-", "_")
        _require_known(name, None, source)
        sections[SECTION[name]][name] = value
    return {section: fields for section, fields in sections.items() if fields}


def _require_known(name: str, section: str | None, source: str) -> None:
    home = SECTION.get(name)
    if home is not None and section in (None, home):
        return
    if home is not None:
        raise InvalidInputError(f"{source}: {name!r} belongs in section {home!r}, not {section!r}")
    where = f" in section {section!r}" if section else ""
    known = [*SECTION, *RunConfig.model_fields] if section is None else SECTION
    raise InvalidInputError(f"{source}: unknown option {name!r}{where}.{nearest(name, known)}")


def _readable(error: ValidationError) -> str:
    seen: dict[str, str] = {}
    for problem in error.errors():
        name = str(problem["loc"][1]) if len(problem["loc"]) > 1 else ""
        message = problem["msg"].removeprefix("Value error, ")
        message = re.sub(r", (unable to parse|got a number with).*", "", message)
        for theirs, ours in _WORDING.items():
            message = message.replace(theirs, ours)
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
