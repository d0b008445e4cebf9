"""Files of tensors and a description: safetensors, with JSON and a digest in the header.

There is no pickle in them, so that reading one cannot run code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from convdkm.errors import ConvDKMError
from convdkm.storage.digests import BLANK, KEY, DamagedError, check_digest, sealing
from convdkm.storage.files import parse_json, plain_path

NAMES = {"convdkm": "a checkpoint of a run", "convdkm-predictor": "a predictor"}
"""What a file is, by the key of its description in the metadata."""
PROGRAMS = {".onnx": "onnxruntime.InferenceSession", ".pt2": "torch.export.load"}
"""What reads the exported programs that one may take for such a file, by their endings."""


@dataclass(frozen=True)
class TensorFormat:
    """One kind of such files.

    Attributes:
        key: of the description in the file's metadata; one of :data:`NAMES`.
        version: of the layout; raised whenever an older program could not read it.
        error: what is raised for files that cannot be read.
        origin: where such files come from.
    """

    key: str
    version: int
    error: type[ConvDKMError]
    origin: str

    def write(
        self, path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]
    ) -> None:
        """Write atomically: a reader sees the old file or the new one, whole."""
        header = json.dumps({"format": self.version, **description})
        save_tensors(path, tensors, {self.key: header})

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and description of a file; whatever is wrong with it is an :attr:`error`."""
        if reader := PROGRAMS.get(path.suffix.lower()):
            raise self.error(
                f"{path} is an exported program, for {reader}; here a .safetensors file is needed:"
                f" {self.origin}"
            )
        try:
            check_digest(path)
            with plain_path(path) as plain, safe_open(plain, framework="pt") as file:
                description = self._description(path, file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except DamagedError as error:
            raise self.error(f"{path} is damaged or cut short: {error}") from None
        except ConvDKMError:
            raise
        except OSError as error:
            raise self.error(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception as error:  # damage takes many forms, some of them deep inside a library
            raise self.error(
                f"{path} is no safetensors file, or it is damaged or cut short:"
                f" {str(error) or repr(error)}"
            ) from None
        return tensors, description

    def _description(self, path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
        if self.key not in metadata:
            other = next((name for key, name in NAMES.items() if key in metadata), None)
            found = "a safetensors file, but not one of convdkm" if other is None else other
            raise self.error(f"{path} is not {NAMES[self.key]}: it is {found}; {self.origin}")
        description = parse_json(metadata[self.key])
        version = description.get("format") if isinstance(description, dict) else None
        if type(version) is not int or version < 1:
            raise self.error(f"{path} does not say which version of the format it has")
        if version > self.version:
            raise self.error(
                f"{path} has format {version}, and this version of convdkm reads up to"
                f" {self.version}; upgrade convdkm to read it"
            )
        return description


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a digest."""
    separate, owners = {}, set()
    for name, value in tensors.items():
        here = value.detach().cpu().contiguous()
        memory = here.untyped_storage().data_ptr()
        separate[name] = here.clone() if memory in owners else here
        owners.add(memory)
    with sealing(path) as temporary:
        try:
            save_file(separate, temporary, metadata={**metadata, KEY: BLANK})
        except SafetensorError as error:
            found = re.search(r"os error (\d+)", str(error))
            if found is None:
                raise
            raise OSError(code := int(found[1]), os.strerror(code)) from error


def key_of(path: Path) -> str | None:
    """Which of :data:`NAMES` a file is, if any; raises what safetensors raises."""
    with plain_path(path) as plain, safe_open(plain, framework="pt") as file:
        return next((key for key in NAMES if key in (file.metadata() or {})), None)
