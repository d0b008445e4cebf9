"""Try a wheel in an empty environment: that nothing is missing, and that it predicts.

python scripts/try_wheel.py dist/convdkm-0.1.0-py3-none-any.whl
"""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"

PREDICT = """
import convdkm, torch

images, labels = torch.rand(12, 3, 8, 8), torch.arange(12) % 2
model = convdkm.resnet(3, 2, (6, 8), (1, 1)).initialise(images, labels).eval()
print(convdkm.__file__)
digits = convdkm.load_pretrained("digits").predict(torch.zeros(1, 1, 8, 8))
print("a blank digit", digits.probs[0].tolist())
print("torch", torch.__version__, "probabilities", model.predict(images).probs[0].tolist())
"""


def main(wheel: Path) -> None:
    """Compare the wheel with the sources, install it and use it; exit with what is wrong."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    needed = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    if missing := sorted(needed - packed):
        sys.exit(f"{wheel} lacks {', '.join(missing)}")
    print(f"{wheel}: all {len(needed)} files of the package")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/venv", with_pip=True)
        python = f"{folder}/venv/bin/python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, str(wheel.resolve())], check=True)
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for command in ([f"{folder}/venv/bin/convdkm", "--help"], [python, "-c", PREDICT]):
            subprocess.run(command, check=True, cwd=folder, env=clean)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
