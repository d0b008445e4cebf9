"""What a run is made of, as data: checked, written to YAML, and shown as command-line options.

Three sections: which images, the machine (:class:`~convdkm.options.MachineOptions`), and the recipe
that it is trained by. The defaults are the paper's. A field's description is its help text; names
are unique over the sections, so that each is also a flag (``--learning-rate``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from convdkm.choices import AugmentStage, ViewsName, WhiteningChoice
from convdkm.errors import InvalidInputError
from convdkm.options import MachineOptions, Options, PositiveInt, Rates, nearest
from convdkm.storage.text import name_text, writable
from convdkm.storage.yaml_file import read_yaml

Patches = Literal["whitened", "standardised", "raw"]
ScheduleName = Literal["steps", "one-cycle", "cosine", "constant"]
Precision = Literal["auto", "float32", "float64", "bfloat16"]
OptimiserName = Literal["adam", "muon"]
WidthTransfer = Literal["none", "root", "linear"]

Fraction = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[float, Field(ge=0)]


class DataConfig(Options):
    """Which images."""

    dataset: str = Field("digits", description="name of a data set, or path of a folder or .npz")
    data_dir: str | None = Field(
        None, description="where data sets are; CONVDKM_DATA or a folder of your own by default"
    )
    image_size: PositiveInt | None = Field(None, description="resize images to this side")
    channels: Annotated[
        Literal[1, 3] | None, BeforeValidator(lambda v: int(v) if v in ("1", "3") else v)
    ] = Field(None, description="1 for grey or 3 for colour; as the files are by default")
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

    @field_validator("dataset", "data_dir", mode="before")
    @classmethod
    def _as_text(cls, path: Any) -> Any:
        """A path that is not UTF-8 as text, as ``storage.text.named_path`` understands it."""
        return name_text(path) if isinstance(path, str) and not writable(path) else path


class Recipe(Options):
    """How a machine is trained: what is done to the images, by which steps, and on what device.

    Runs, estimators and baselines follow it by the same code (:mod:`convdkm.training.build`).
    """

    whitening: WhiteningChoice = Field(
        "auto",
        description="of the images: ZCA (of standardised channels, as in the paper's text, or as"
        " published), channels to mean 0 and variance 1, channels to variance 1 alone, or none;"
        " auto: zca, or standardise where there are fewer images than values of an image, or too"
        " many values",
    )
    zca_epsilon: Annotated[float, Field(ge=0)] = Field(0.1, description="regulariser of ZCA")
    crop: Annotated[int, Field(ge=0)] = Field(
        4, description="random crops from a margin of zeros this wide; 0 for none"
    )
    flip: bool = Field(True, description="random horizontal flips")
    alternate_flips: bool = Field(
        False,
        description="with 'flip': draw the flip of an image in the first epoch only, and mirror it"
        " in every other one",
    )
    cutout: Annotated[int, Field(ge=0)] = Field(
        0, description="side of a square of zeros at a random place of every image; 0 for none"
    )
    augment: AugmentStage = Field(
        "before-whitening", description="crop, flip and cut out before whitening or after it"
    )
    augment_everywhere: bool = Field(
        False,
        description="crop and flip also the images that whitening is fitted to, those that"
        " initialisation looks at, and training images that are scored at the end",
    )
    inducing_patches: Patches = Field(
        "whitened", description="what the inducing patches are drawn from"
    )
    inducing_images: PositiveInt = Field(
        512, description="images, balanced over the classes, that initialisation looks at"
    )
    inducing_per_class: PositiveInt | None = Field(
        None, description="so many of each class in their place"
    )
    start_from: str | None = Field(
        None,
        description="begin with the body and the whitening of this machine, and a new top layer: a"
        " pretrained machine, the folder of a run, or a file of Run.save",
    )
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
    mixing_rate: Factor = Field(1.0, description="of mixing weights, times the learning rate")
    gram_rate: Factor = Field(1.0, description="of Gram factors, times the learning rate")
    head_rate: Factor = Field(1.0, description="of the top layer, times the learning rate")
    input_rate: Factor = Field(
        1.0, description="of inducing inputs, times the learning rate; 0 freezes them"
    )
    noise_rate: Factor = Field(
        1.0, description="of the logarithm of Gaussian noise, times the learning rate"
    )
    width_transfer: WidthTransfer = Field(
        "none",
        description="Adam's rate of mixing weights of P incoming inducing points: times (16/P)^½"
        " (root) or 16/P (linear)",
    )
    optimiser: OptimiserName = Field(
        "adam", description="of mixing weights: Adam, or Muon, with Adam for the rest"
    )
    muon_rate: Annotated[float, Field(gt=0)] = Field(
        0.02, description="Muon's, at its peak: the angle by which a step turns the weights"
    )
    natural_rate: Factor = Field(
        0.0,
        description="of natural steps of Gram factors, at its peak: the change of a Gram matrix"
        " relative to itself; 0 for Adam",
    )
    head_natural_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="of natural steps of the top layer, at its peak: the share of its precision"
        " that a step replaces; 0 for Adam",
    )
    lookahead: Annotated[int, Field(ge=0)] = Field(
        0, description="steps after which weights are averaged with slow weights; 0 for no average"
    )
    lookahead_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="share of the way that slow weights go in an average"
    )
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
    nu_start: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="what every nu is multiplied by in the first step; then log-linear to 1"
    )
    nu_warmup: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of training after which that factor is 1"
    )
    early_scale: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="what the sides of training images are multiplied by early in training"
    )
    early_share: Fraction = Field(0.5, description="share of training in which that is done")
    calibrate: Annotated[int, Field(ge=0)] = Field(
        0, description="training images that running statistics are made exact by, at evaluation"
    )
    evaluate_every: Annotated[int, Field(ge=0)] = Field(
        1, description="epochs between evaluations on the test images; 0: only at the end"
    )
    views: ViewsName = Field(
        "one",
        description="of an image at prediction: the image; with its mirror image; with shifts by a"
        " pixel; or crops, both; training's final figures are by these, those of an epoch by one",
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
    precision: Precision = Field(
        "float32",
        description="of the data path; bfloat16: of its convolutions and products in training"
        " alone, all else in float32; auto: bfloat16 where the processor computes in it",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps, …; auto takes what there is")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="of everything that is random")

    @model_validator(mode="after")
    def _check_rates(self) -> Recipe:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are two numbers in [0, 1), got {self.betas}")
        if not all(0 < place <= 1 for place in self.milestones):
            raise ValueError(f"milestones are shares of training in (0, 1], got {self.milestones}")
        if self.augment_everywhere and self.augment == "after-whitening":
            raise ValueError("augment_everywhere goes with augment='before-whitening'")
        return self


class RunConfig(Options):
    """Everything that makes a run."""

    data: DataConfig = Field(default_factory=DataConfig)
    model: MachineOptions = Field(default_factory=MachineOptions)
    training: Recipe = Field(default_factory=Recipe)

    @model_validator(mode="after")
    def _check_sizes(self) -> RunConfig:
        if self.training.early_scale < 1 and (fixed := self.model.fixing_places):
            raise ValueError(
                f"early_scale is for machines that take images of any size, but {fixed} has"
                " parameters for every place"
            )
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "the configuration") -> RunConfig:
        """From nested sections or flat options, or both; errors name the key and the source."""
        return cls.checked(nested(values, source), source, depth=1)

    def updated(self, values: Mapping[str, Any], source: str = "the options") -> RunConfig:
        """A copy with other values, nested or flat.

        Lists of blocks and strides that are not among them are cut, or go on with their last
        number, where the values hold inducing points of another number of stages.
        """
        changes = nested(values, source)
        merged = self.model_dump()
        for section, fields in changes.items():
            merged[section].update(fields)
        made = RunConfig.of(merged, source)
        if "inducing" not in changes.get("model", {}):
            return made
        kept = {"blocks", "strides"} - changes["model"].keys()
        return made.model_copy(update={"model": made.model.with_lists_of_stages(kept)})

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


SECTIONS: dict[str, type[Options]] = {
    "data": DataConfig,
    "model": MachineOptions,
    "training": Recipe,
}
SECTION = {name: section for section, kind in SECTIONS.items() for name in kind.model_fields}
"""The section that each option belongs to."""
EARLIER = dict.fromkeys(
    (
        "whitening",
        "zca_epsilon",
        "crop",
        "flip",
        "augment",
        "inducing_patches",
        "inducing_images",
    ),
    "data",
)
"""Options of the recipe that files of earlier versions have in another section; read there too."""


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
                sections[SECTION[name]][name] = entry
            continue
        name = key.replace("-", "_")
        _require_known(name, None, source)
        sections[SECTION[name]][name] = value
    return {section: fields for section, fields in sections.items() if fields}


def _require_known(name: str, section: str | None, source: str) -> None:
    home = SECTION.get(name)
    if home is not None and section in (None, home, EARLIER.get(name)):
        return
    if home is not None:
        raise InvalidInputError(f"{source}: {name!r} belongs in section {home!r}, not {section!r}")
    where = f" in section {section!r}" if section else ""
    known = [*SECTION, *RunConfig.model_fields] if section is None else SECTION
    raise InvalidInputError(f"{source}: unknown option {name!r}{where}.{nearest(name, known)}")
