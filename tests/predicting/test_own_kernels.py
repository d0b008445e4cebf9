"""Kernels of a user's own, and new ones, fold, are saved, loaded, compiled and exported."""

import json
import types

import pytest
import torch

import convdkm as dkm
from convdkm.predicting import load_predictor
from convdkm.predicting.describing import rebuilt
from convdkm.runtime import compiled
from damage import rewrite


class Cauchy(dkm.Isotropic):
    """A kernel of the distance."""

    def of_squared_distance(self, r2):
        return 1 / (1 + r2)


class Exponential(dkm.Angular):
    """A kernel of the cosine, with a setting and a learned number of its own."""

    def __init__(self, power=2.0):
        super().__init__(weight_variance=0.7, bias_variance=0.1)
        self.power = power
        self.rate = torch.nn.Parameter(torch.tensor(0.8, dtype=torch.float64))

    def of_cosine(self, cosine):
        return torch.exp(self.rate.to(cosine.dtype) * self.power * (cosine - 1))


class Shifted(dkm.Angular):
    """A kernel of the cosine of points that have one coordinate more, which is not compared."""

    shift = 0.3

    def of_cosine(self, cosine):
        return torch.exp(cosine - 1)


class Written(dkm.Kernel):
    """A kernel that is neither: what it is, and its variance."""

    def of(self, cross, left, right):
        return cross + cross.square() / (1 + left + right)

    def variance(self, own):
        return own + own.square() / (1 + 2 * own)


KERNELS = {
    "distance": Cauchy,
    "cosine": Exponential,
    "shifted": Shifted,
    "erf": lambda: dkm.ArcSine(weight_variance=1.3, bias_variance=0.2),
    "leaky": lambda: dkm.LeakyReLU(0.3, bias_variance=0.2),
    "sine": lambda: dkm.Sine(0.8, 0.3, bias_variance=0.2),
    "any": Written,
    "sum": lambda: Cauchy(1.3, learn=True) + 0.5 * dkm.ArcCosine(),
    "product": lambda: Exponential(1.0) * Written(),
}


def machine(kernel, dtype=torch.float32):
    body = dkm.Sequential(
        dkm.GramLayer(5),
        kernel,
        dkm.Noise(0.1, 0.2),
        dkm.Conv(5, 6, 3),
        dkm.GramLayer(6),
        dkm.Norm(),
        dkm.GlobalAveragePool(),
    )
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 5), body, dkm.GPHead(6, 3), dkm.Categorical(3), dtype=dtype
    )
    images = torch.randn(12, 2, 6, 5, generator=torch.Generator().manual_seed(1))
    return model.initialise(images, seed=0).eval(), images


@pytest.fixture(params=KERNELS)
def made(request):
    return machine(KERNELS[request.param]())


def require_same(predictor, model, images, tolerance=1e-5):
    expected, found = model.predict(images), predictor.predict(images)
    for name in ("mean", "variance", "log_probs"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=tolerance, atol=tolerance
        )


def test_it_is_saved_and_loaded(made, tmp_path):
    model, images = made
    predictor = model.folded()
    require_same(predictor, model, images)
    predictor.save(tmp_path / "machine.safetensors")
    loaded = load_predictor(tmp_path / "machine.safetensors")
    assert not list(loaded.parameters())
    expected = predictor.predict(images)
    torch.testing.assert_close(loaded.predict(images).log_probs, expected.log_probs)


def test_it_is_exported(made):
    model, images = made
    program = model.folded().export((2, 6, 5)).module()
    expected = model.folded()(images[:5])
    for one, other in zip(program(images[:5]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["distance", "cosine", "erf", "leaky"])
def test_it_is_written_as_onnx(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model, images = machine(KERNELS[name]())
    model.folded().save_onnx(tmp_path / "machine.onnx", (2, 6, 5))
    session = runtime.InferenceSession(str(tmp_path / "machine.onnx"))
    found = session.run(None, {"images": images.numpy()})
    for one, other in zip(found, model.folded()(images), strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["distance", "cosine", "shifted", "erf", "leaky"])
def test_it_is_compiled(name):
    model, images = machine(KERNELS[name]())
    labels = torch.arange(12) % 3
    plain = model.objective(images, labels, num_data=12).total
    plain.backward()
    expected = model.input.inducing.grad.clone()
    model.zero_grad()
    if not model.compile_elementwise():
        pytest.skip("nothing compiles here: there is no C++ compiler")
    total = model.objective(images, labels, num_data=12).total
    total.backward()
    torch.testing.assert_close(total, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.input.inducing.grad, expected, rtol=1e-3, atol=1e-4)
    require_same(model.folded(), model, images, 1e-4)


def test_a_kernel_that_cannot_be_compiled_goes_on_without(caplog, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("this cannot be compiled\nsecond line")

    class NewKind(Cauchy):
        """A kind for which no other test has made a program."""

    monkeypatch.setattr(compiled, "compile_fx", fails)
    model, images = machine(NewKind())
    labels = torch.arange(12) % 3
    expected = model.objective(images, labels, num_data=12).total
    kernel = next(part for part in model.modules() if isinstance(part, NewKind))
    kernel.compiled = True
    torch.testing.assert_close(model.objective(images, labels, num_data=12).total, expected)
    assert not kernel.compiled
    assert "NewKind is not compiled: this cannot be compiled" in caplog.text


def test_a_kernel_that_is_not_known_to_the_reader_is_named(tmp_path):
    def local():
        class Hidden(dkm.Isotropic):
            def of_squared_distance(self, r2):
                return 1 / (2 + r2)

        return Hidden()

    model, _ = machine(local())
    path = tmp_path / "machine.safetensors"
    model.folded().save(path)
    load_predictor(path)

    def renamed(header, _tensors):
        text = json.dumps(header)
        assert text.count("Hidden") == 1
        header.update(json.loads(text.replace("Hidden", "Absent")))

    rewrite(path, renamed, "convdkm-predictor")
    with pytest.raises(dkm.ConvDKMError, match=r"kernel .*Absent, which is not known here; import"):
        load_predictor(path)


def test_what_a_file_cannot_hold_is_an_error_that_names_it():
    kernel = Exponential()
    kernel.table = {"not": "plain"}
    predictor = machine(kernel)[0].folded()
    with pytest.raises(dkm.InvalidInputError, match=r"Exponential has an attribute 'table'.*dict"):
        predictor.require_exportable()
    changed = dkm.ArcCosine()
    changed.variance = types.MethodType(lambda self, own: 2 * own, changed)
    predictor = machine(changed)[0].folded()
    with pytest.raises(dkm.InvalidInputError, match=r"attribute 'variance'"):
        predictor.require_exportable()


# -- files of earlier versions -----------------------------------------------------------------

EARLIER = {
    "arc-cosine": (
        {"kind": "FoldedArcCosine", "settings": {"order": 0, "slope": 1.3, "intercept": 0.2}},
        lambda: dkm.ArcCosine(0, weight_variance=1.3, bias_variance=0.2),
    ),
    "matern": (
        {
            "kind": "FoldedIsotropic",
            "settings": {"form": "matern", "precision": 0.25, "scale": 0.7, "shape": 1.5},
        },
        lambda: dkm.Matern(1.5, 2.0, scale=0.7),
    ),
    "gaussian": (
        {"kind": "FoldedNormalisedGaussian", "settings": {"gamma": 1.5}},
        lambda: dkm.NormalisedGaussian(1.5),
    ),
    "polynomial": (
        {"kind": "FoldedNormalisedPolynomial", "settings": {"weights": [0.25, 0.75]}},
        dkm.NormalisedPolynomial,
    ),
}


def combined(kind, **settings):
    parts = {f"kernel{n}": each for n, (each, _) in enumerate(EARLIER.values())}
    inner = {"kind": "FoldedList", "settings": {}, "parts": parts}
    return {"kind": kind, "settings": settings, "parts": {"kernels": inner}}


def several(join, weights):
    kernels = [make() for _, make in EARLIER.values()]
    return join(*(dkm.Scaled(k, w) for k, w in zip(kernels, weights, strict=True)))


@pytest.mark.parametrize("name", [*EARLIER, "sum", "product"])
def test_kernels_of_earlier_files_are_read(name):
    for each, _ in EARLIER.values():
        each.setdefault("parts", {})
    weights = (0.5, 1.0, 2.0, 0.3)
    description, expected = {
        **{key: (each, make()) for key, (each, make) in EARLIER.items()},
        "sum": (combined("FoldedSum", weights=list(weights)), several(dkm.Sum, weights)),
        "product": (combined("FoldedProduct"), several(dkm.Product, (1.0,) * 4)),
    }[name]
    kernel = rebuilt(description, {})
    left, right = torch.rand(2, 9).double() + 0.2
    cross = 0.7 * (left * right).sqrt()
    with torch.no_grad():
        torch.testing.assert_close(kernel.of(cross, left, right), expected.of(cross, left, right))
        torch.testing.assert_close(kernel.variance(left), expected.variance(left))
