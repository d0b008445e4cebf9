"""Layers, inputs and likelihoods of a user's own fold, are saved, loaded, compiled and exported."""

import json

import pytest
import torch
from torch import nn

import convdkm as dkm
from convdkm.layers import Layer, Plan
from damage import rewrite

IMAGE = (2, 6, 5)


class Power(Layer):
    """Scales a Gram, with a learned number, a setting, and a part of its own."""

    def __init__(self, points, times=2.0):
        super().__init__()
        self.times = times
        self.log_scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.mixing = nn.Parameter(torch.eye(points, dtype=torch.float64) + 0.1)

    def plan(self, ii):
        scale = self.times * self.log_scale.exp()
        matrix = scale.sqrt() * self.mixing
        return PowerPlan(matrix @ ii @ matrix.T, matrix, self.times)


class PowerPlan(Plan):
    def __init__(self, ii, matrix, times):
        self.matrix = matrix
        super().__init__(ii)
        self.times = times

    def data(self, it, tt):
        it = torch.einsum("qp,np...->nq...", self.matrix.to(it.dtype), it)
        return it, tt * self.times * 2


class Halved(dkm.Norm):
    """One of the library's layers, changed."""

    def data_factor(self, tt):
        return super().data_factor(tt) / 2


class ByLayer(Layer):
    """A plan that asks its layer, and modules that it holds, for everything."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([dkm.Noise(0.1, 0.2), dkm.Noise(0.0, 0.1)])

    def plan(self, ii):
        plans = []
        for part in self.parts:
            plans.append(part.plan(ii))
            ii = plans[-1].ii
        return ByLayerPlan(self, plans, ii)


class ByLayerPlan(Plan):
    def __init__(self, layer, plans, ii):
        super().__init__(ii)
        self.layer, self.plans = layer, plans

    def data(self, it, tt):
        for plan in self.plans:
            it, tt = plan.data(it, tt)
        return it, tt * len(list(self.layer.children()))


class Shifted(dkm.PatchInput):
    """Images with a constant added."""

    def data(self, inputs):
        it, tt = super().data(inputs)
        return 2 * it, 4 * tt


class Doubtful(dkm.Gaussian):
    """Regression that doubles its variances, with a learned number."""

    def __init__(self, outputs):
        super().__init__(outputs)
        self.doubt = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.register_buffer("more", torch.ones(outputs), persistent=False)

    def predict(self, marginals):
        doubt = self.doubt.to(marginals.mean.dtype)
        made = super().predict(marginals)
        return dkm.RealPrediction(
            made.mean, made.variance, made.target_variance * doubt + self.more
        )


MACHINES = {
    "tensors and settings": {"body": lambda: [Power(5)]},
    "a changed layer": {"body": lambda: [dkm.Conv(5, 5, 3), Halved()]},
    "layers inside": {"body": lambda: [ByLayer()]},
    "in a skip": {"body": lambda: [dkm.Skip(Power(5), weight=0.3), dkm.ArcCosine()]},
    "input": {"source": lambda: Shifted(2, 5)},
    "likelihood": {"likelihood": lambda: Doubtful(3)},
}


def machine(body=list, source=lambda: dkm.PatchInput(2, 5), likelihood=lambda: dkm.Categorical(3)):
    layers = [dkm.GramLayer(5), *body(), dkm.Conv(5, 6, 3), dkm.Norm(), dkm.GlobalAveragePool()]
    model = dkm.DeepKernelMachine(source(), dkm.Sequential(*layers), dkm.GPHead(6, 3), likelihood())
    images = torch.randn(12, *IMAGE, generator=torch.Generator().manual_seed(1))
    return model.initialise(images, seed=0).eval(), images


@pytest.fixture(params=MACHINES)
def made(request):
    return machine(**MACHINES[request.param])


def require_same(tensors, model, images, tolerance=1e-5):
    expected = [each for each in vars(model.predict(images)).values() if each is not None]
    for one, other in zip(tensors, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_it_folds_and_is_saved_and_loaded(made, tmp_path):
    model, images = made
    predictor = model.folded()
    assert not list(predictor.parameters())
    require_same(predictor(images), model, images)
    predictor.save(tmp_path / "machine.safetensors")
    loaded = dkm.load_predictor(tmp_path / "machine.safetensors")
    assert not list(loaded.parameters())
    for one, other in zip(loaded(images), predictor(images), strict=True):
        assert torch.equal(one, other)
    assert type(loaded.predict(images)) is type(model.predict(images))


def test_what_is_folded_is_a_snapshot(made):
    model, images = made
    predictor = model.folded()
    before = predictor(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert torch.equal(predictor(images)[1], before[1])
    require_same(model.folded()(images), model, images)


def test_it_is_exported(made):
    model, images = made
    program = model.folded().export(IMAGE).module()
    require_same(program(images[:5]), model, images[:5], 1e-4)


@pytest.mark.parametrize("name", ["tensors and settings", "likelihood"])
def test_it_is_written_as_onnx(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model, images = machine(**MACHINES[name])
    model.folded().save_onnx(tmp_path / "machine.onnx", IMAGE)
    session = runtime.InferenceSession(str(tmp_path / "machine.onnx"))
    found = session.run(None, {"images": images.numpy()})
    require_same([torch.from_numpy(each) for each in found], model, images, 1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_compiled():
    model, images = machine(**MACHINES["tensors and settings"])
    predictor = model.folded().use_compiled()
    require_same(predictor(images), model, images, 1e-4)
    if not predictor.program_works:
        pytest.skip("nothing compiles here")


def test_a_layer_that_is_not_known_to_the_reader_is_named(tmp_path):
    def local():
        class HiddenPlan(Plan):
            def data(self, it, tt):
                return it, tt

        class Hidden(Layer):
            def plan(self, ii):
                return HiddenPlan(ii)

        return Hidden()

    path = tmp_path / "machine.safetensors"
    machine(lambda: [local()])[0].folded().save(path)
    dkm.load_predictor(path)

    def renamed(header, _tensors):
        text = json.dumps(header)
        assert text.count("HiddenPlan") == 1
        header.update(json.loads(text.replace("HiddenPlan", "AbsentPlan")))

    rewrite(path, renamed, "convdkm-predictor")
    with pytest.raises(dkm.ConvDKMError, match=r"AbsentPlan, which is not known here; import it"):
        dkm.load_predictor(path)


class Opaque(Layer):
    def plan(self, ii):
        return OpaquePlan(ii)


class OpaquePlan(Plan):
    def __init__(self, ii):
        super().__init__(ii)
        self.function = lambda tt: 2 * tt

    def data(self, it, tt):
        return it, self.function(tt)


def test_what_a_file_cannot_hold_is_an_error_that_names_it():
    model, images = machine(lambda: [Opaque()])
    predictor = model.folded()
    require_same(predictor(images), model, images)
    with pytest.raises(
        dkm.InvalidInputError, match=r"part 'body\.parts.*OpaquePlan has an attribute 'function'"
    ):
        predictor.require_exportable()


def test_statistics_of_the_batch_inside_a_layer_are_an_obstacle():
    class Wrapped(Layer):
        def __init__(self):
            super().__init__()
            self.norm = dkm.Norm(statistics="batch")

        def plan(self, ii):
            return WrappedPlan(ii, self)

        def initialise(self, gram, generator=None):
            self.norm.initialise(gram, generator)
            return self(gram)

    class WrappedPlan(Plan):
        def __init__(self, ii, layer):
            super().__init__(ii)
            self.layer = layer

        def data(self, it, tt):
            factor = self.layer.norm.data_factor(tt)
            return it * factor.unsqueeze(1), tt * factor.square()

    model, images = machine(lambda: [Wrapped()])
    predictor = model.folded()
    require_same(predictor(images), model, images)
    with pytest.raises(dkm.InvalidInputError, match=r"statistics='batch'.*calibrate"):
        predictor.require_exportable()
