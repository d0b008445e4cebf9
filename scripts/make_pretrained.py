"""Make a pretrained machine of a finished run: its file, its model card and its entry in the index.

python scripts/make_pretrained.py runs/cifar10-fast-20261118-053040 cifar10 --storage float16

Figures, settings and costs are read from the run. The probabilities of test images by the file have
to be within 1e-3 of those by the run. Files below 1 MB become part of the package, others go to the
folder ``pretrained`` of the repository, where all cards are.
"""

import argparse
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

from convdkm.choices import Storage
from convdkm.data.checksums import sha256_of_file
from convdkm.data.registry import KNOWN_SETS
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.pretrained import CLONE, INDEX, PACKAGED
from convdkm.storage.files import read_mapping, replacing, write_json, write_text
from convdkm.training.folder import ENVIRONMENT
from convdkm.training.metric_names import metric_rows
from convdkm.training.run import Run
from convdkm.training.sources import kept

SMALL = 1_000_000
"""Bytes of a file below which it is part of the package."""
TOLERANCE = 1e-3
"""Of probabilities."""
IMAGES = 2_000
"""Test images that they are compared on."""
PLACES = ("-o", "--output", "--data-dir", "-q", "--quiet", "--overwrite")
"""Flags of ``convdkm train`` that say where things are, and nothing of the machine."""


def make(folder: Path, name: str, storage: str, into: Path | None, notes: str) -> Path:
    """Write file, card and entry of the machine of a run; returns the file.

    Args:
        folder: of the run.
        name: of the machine.
        storage: as in :meth:`convdkm.Run.save`.
        into: the folder for all three; that of the package or the repository by default.
        notes: added to the limits on the card.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InvalidInputError(f"a name is of small letters, digits and hyphens, got {name!r}")
    run = Run.open(folder, device="cpu")
    if not run.metrics:
        raise InvalidInputError(f"{folder} has no final figures: finish it with convdkm resume")
    images = kept(run.config, folder).parts["test"].images[:IMAGES]
    config = run.config.updated({"data_dir": None})
    file = f"{name}.safetensors"
    target = (into or CLONE) / file
    with replacing(target) as temporary:
        published = replace(run, config=config)
        published.save(temporary, storage=storage)
        loaded = Run.load(temporary, device="cpu")
        deviation = float((run.predict(images).probs - loaded.predict(images).probs).abs().max())
        if deviation > TOLERANCE:
            raise InvalidInputError(
                f"in {storage}, probabilities of test images change by up to {deviation:.2g}, which"
                f" is more than {TOLERANCE:g}; --storage float32 is more precise"
            )
    if into is None and target.stat().st_size < SMALL:
        target = target.replace(PACKAGED / file)
    elif into is None:
        (PACKAGED / file).unlink(missing_ok=True)  # of a smaller one of this name
    dataset = Path(config.data.dataset).name
    entry = {
        "file": file,
        "sha256": sha256_of_file(target),
        "size": target.stat().st_size,
        "dataset": dataset,
        "image_shape": list(run.image_shape),
        "class_names": list(run.class_names),
        "figures": run.metrics,
        "storage": storage,
        "deviation": deviation,
        "compared": len(images),
    }
    index = (into or PACKAGED) / INDEX
    write_json(index, dict(sorted({**(read_mapping(index) or {}), name: entry}.items())))
    environment = read_mapping(folder / ENVIRONMENT) or {}
    write_text((into or CLONE) / f"{name}.md", card(name, entry, published, environment, notes))
    return target


def card(name: str, entry: dict, run: Run, environment: dict, notes: str) -> str:
    """The model card."""
    figures, config = run.metrics, run.config
    known = KNOWN_SETS.get(entry["dataset"])
    title = known.title if known else entry["dataset"]
    parts, rows = metric_rows(figures, lambda _, v: "–" if v is None else f"{v:.4f}")
    table = [["", *parts], ["---"] * (len(parts) + 1), *rows]
    images = f"{figures['train_images']:,} training images, {figures['test_images']:,} test images"
    classes = ", ".join(run.class_names[:10]) + ", …" * (len(run.class_names) > 10)
    change = f"probabilities of {entry['compared']:,} test images change by at most"
    cost = [f"{figures['seconds']:,.0f} s"]
    if "cpu_seconds" in figures:
        cost.append(f"{figures['cpu_seconds']:,.0f} s of processor time")
    if "flops" in figures:
        cost.append(f"{figures['flops']:.3g} floating-point operations")
    model, notes = config.model, f"\n\n{notes}" if notes else ""
    count, shape = len(run.class_names), "×".join(map(str, run.image_shape))
    return f"""# {name}

A convolutional deep kernel machine for the data set {title}: {count} classes, images {shape}.

```python
import convdkm as dkm

predictor = dkm.load_pretrained("{name}")  # takes images with values from 0 to 1
run = dkm.load_pretrained("{name}", folded=False)  # run.model, run.config, run.metrics
```

| | |
|---|---|
| data | {title}: {images} |
| classes | {classes} |
| inducing points, blocks | {_slashed(model.inducing)}, {_slashed(model.blocks)} |
| kernel, ν | {model.kernel}, {model.nu} |
| parameters | {figures["parameters"]:,} |
| whitening | {config.training.whitening} |
| command | `{command_of(environment)}` |
| commit | {commit_of(environment)} |
| training | {figures["epochs"]} epochs, {figures["steps"]:,} steps, seed {config.training.seed} |
| cost | {", ".join(cost)} |
| views at prediction | {figures["views"]} |
| file | `{entry["file"]}`, {entry["size"]:,} bytes, SHA-256 `{entry["sha256"]}` |
| precision | {entry["storage"]}; {change} {entry["deviation"]:.1e} |

{chr(10).join(f"| {' | '.join(row)} |" for row in table)}

The figures are those of the run, one seed. All settings are in the file: `run.config.to_yaml()`.

## Limits

It was trained on these images alone, and other cameras, corruptions and kinds of images were not
measured. Every image gets one of the classes, also one of none: see its entropy.{notes}

## Licence

Apache-2.0, as the library. The images are those of {title}, and have its terms.
"""


def command_of(environment: dict) -> str:
    """What the run was made by, without the places of files."""
    words = [str(word) for word in environment.get("command", [])]
    shown, skipped = [], False
    for word in words[1:]:
        flag, equals, _ = word.partition("=")
        if not skipped and flag not in PLACES:
            shown.append(word)
        skipped = flag in PLACES[:3] and not equals
    return shlex.join(["convdkm", *shown])


def commit_of(environment: dict) -> str:
    """The state of the code that the run began with."""
    git = environment.get("git") or {}
    return f"`{git.get('commit', 'unknown')}`{', with changes' * bool(git.get('modified'))}"


def _slashed(numbers: tuple[int, ...]) -> str:
    return "/".join(map(str, numbers))


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("name", help="of the machine, such as cifar10-small")
    parser.add_argument("--storage", choices=get_args(Storage), default="float16")
    parser.add_argument("--folder", type=Path, help="write all files there, with an index")
    parser.add_argument("--notes", default="", help="sentences to add to the limits on the card")
    given = parser.parse_args(arguments)
    try:
        print(make(given.run, given.name, given.storage, given.folder, given.notes))
    except ConvDKMError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
