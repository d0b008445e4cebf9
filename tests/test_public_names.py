"""The public names: each stands once, in a stub, and is loaded when it is first used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import convdkm

PACKAGES = (
    "convdkm",
    "convdkm.data",
    "convdkm.kernels",
    "convdkm.training",
    "convdkm.lab.baselines",
)


def stub(package: str) -> list[ast.alias]:
    """What the stub of a package imports: what mypy and editors see."""
    path = Path(importlib.import_module(package).__file__).with_suffix(".pyi")
    imports = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    return [alias for node in imports for alias in node.names]


def test_every_stub_is_tested():
    root = Path(convdkm.__file__).parent
    found = {".".join(path.parent.relative_to(root.parent).parts) for path in root.rglob("*.pyi")}
    assert found == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_names_of_a_stub_are_those_of_its_package(package):
    module = importlib.import_module(package)
    names = [alias.name for alias in stub(package)]
    assert len(names) == len(set(names))
    assert set(names) == set(module.__all__) - {"__version__"}
    assert set(module.__all__) <= set(dir(module))
    for name in names:
        value = getattr(module, name)
        assert name.isupper() or value.__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        module.nothing_of_the_kind  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_a_type_checker_sees_the_names_as_public(package):
    for alias in stub(package):
        assert alias.asname == alias.name  # a stub hides what it imports under no name


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_alone_loads_nothing_slow(package):
    program = f"import {package}, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"torch", "numpy", "sklearn", "scipy", "pydantic"}


def test_fit_is_the_function_even_where_its_module_came_first():
    program = (
        "import convdkm.training.fit\n"
        "from convdkm.training import fit\n"
        "assert callable(fit), fit\n"
        "from convdkm import *\n"
        "assert (fit.__name__, resnet.__name__) == ('fit', 'resnet')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
