"""Several views of an image at prediction."""

import json

import pytest
import torch

import convdkm as dkm
from convdkm.data.whitening import Standardise
from convdkm.head import Marginals
from convdkm.views import Views
from oracle.cases import perturb

NAMES = {"one": 1, "flip": 2, "shifts": 3, "crops": 6}


@pytest.fixture(scope="module")
def machine():
    torch.manual_seed(0)
    images, labels = torch.rand(12, 2, 6, 5), torch.arange(12) % 3
    model = dkm.resnet(2, 3, (5,), (1,), dtype=torch.float64).initialise(images, labels, seed=0)
    perturb(model, torch.Generator().manual_seed(0))
    return model.eval(), images.double()


def by_hand(images, name):
    """The views one by one, as the documentation lists them."""
    moved = [images]
    if name in ("shifts", "crops"):
        down, up = torch.zeros_like(images), torch.zeros_like(images)
        down[:, :, 1:, 1:] = images[:, :, :-1, :-1]
        up[:, :, :-1, :-1] = images[:, :, 1:, 1:]
        moved += [down, up]
    return moved + [view.flip(3) for view in moved] * (name in ("flip", "crops"))


@pytest.mark.parametrize("name", NAMES)
def test_the_functions_are_averaged_over_the_views(machine, name):
    model, images = machine
    marginals = [model.marginals(view) for view in by_hand(images, name)]
    assert len(marginals) == NAMES[name] == Views(name).count
    mean = torch.stack([each.mean for each in marginals]).mean(0)
    variance = torch.stack([each.variance for each in marginals]).mean(0)
    expected = model.likelihood.predict(Marginals(mean, variance))
    actual = model.predict(images, views=name, batch_size=5)
    for field in ("mean", "variance", "log_probs", "expected_entropy"):
        torch.testing.assert_close(getattr(actual, field), getattr(expected, field))
    assert (actual.mutual_information >= 0).all()


def test_mirror_images_get_the_same_prediction(machine):
    model, images = machine
    prediction = model.predict(images, views="flip").log_probs
    torch.testing.assert_close(model.predict(images.flip(3), views="flip").log_probs, prediction)
    assert (model.predict(images).log_probs - prediction).abs().max() > 1e-3


@pytest.mark.parametrize("stage", ["before-whitening", "after-whitening"])
def test_a_predictor_sees_the_views_of_its_machine(machine, stage, tmp_path):
    model, images = machine
    whitening = Standardise().fit(images)
    expected = model.predict(images, views=Views("crops", whitening, stage))
    folded = model.folded()
    folded.before, folded.sample_shape = whitening, tuple(images.shape[1:])
    predictor = folded.with_views("crops", stage)
    assert folded.views == "one"
    torch.testing.assert_close(predictor.predict(images, batch_size=7).mean, expected.mean)
    torch.testing.assert_close(folded.predict(images, views="one").mean, folded(images)[0])
    other = {"before-whitening": "after-whitening"}.get(stage, "before-whitening")
    moved = folded.with_views("crops", other).predict(images).mean
    assert (moved - expected.mean).abs().max() > 1e-6


def test_files_and_programs_have_the_views(machine, tmp_path):
    model, images = machine
    predictor = model.folded().with_views("crops")
    expected = predictor.predict(images)
    predictor.save(tmp_path / "machine.safetensors")
    loaded = dkm.load_predictor(tmp_path / "machine.safetensors")
    assert loaded.views == "crops"
    assert torch.equal(loaded.predict(images).log_probs, expected.log_probs)
    one = loaded.predict(images, views="one").log_probs
    torch.testing.assert_close(one, model.predict(images).log_probs)
    program = predictor.export(image_shape=(2, 6, 5)).module()
    torch.testing.assert_close(program(images[:5])[2], expected.log_probs[:5])


def test_onnx_has_the_views(machine, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, images = machine
    predictor = model.folded().float().with_views("crops")
    predictor.save_onnx(tmp_path / "machine.onnx", image_shape=(2, 6, 5))
    session = onnxruntime.InferenceSession(
        tmp_path / "machine.onnx", providers=["CPUExecutionProvider"]
    )
    assert json.loads(session.get_modelmeta().custom_metadata_map["views"]) == "crops"
    (found,) = session.run(["log_probs"], {"images": images[:3].float().numpy()})
    expected = predictor.predict(images[:3]).log_probs
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-4)


def test_a_run_uses_the_views_of_its_recipe():
    options = {"epochs": 1, "inducing": (6, 6), "train_size": 60, "test_size": 30}
    run = dkm.fit("quick", "digits", views="shifts", **options)
    images = dkm.data.load_digits().test_images[:9]
    assert run.metrics["views"] == 3
    prediction = run.predict(images)
    by_name = run.predict(images, views="shifts", batch_size=4)
    torch.testing.assert_close(prediction.log_probs, by_name.log_probs)
    assert not torch.allclose(prediction.log_probs, run.predict(images, views="one").log_probs)
    file = run.predictor().predict(images)
    torch.testing.assert_close(file.log_probs, prediction.log_probs, rtol=1e-4, atol=1e-5)
    plain = dkm.fit("quick", "digits", **options)
    assert plain.metrics["views"] == 1
    torch.testing.assert_close(plain.predict(images, views="shifts").mean, prediction.mean)


def test_an_estimator_takes_views():
    digits = dkm.data.load_digits()
    images, labels = digits.train_images[:60, 0].numpy(), digits.train_labels[:60].numpy()
    options = {"inducing": (6, 6), "epochs": 1, "random_state": 0}
    one = dkm.ConvDKMClassifier(**options).fit(images, labels)
    several = dkm.ConvDKMClassifier(**options, views="shifts").fit(images, labels)
    whitened = one.whitening_(torch.tensor(images)[:, None])
    expected = one.model_.predict(whitened, views="shifts").log_probs
    torch.testing.assert_close(several.predictive(images).log_probs, expected)
    with pytest.raises(dkm.InvalidInputError, match="signals"):
        dkm.ConvDKMClassifier(views="flip").fit(images.reshape(60, -1), labels)


def test_what_is_wrong_is_said(machine):
    model, images = machine
    with pytest.raises(dkm.InvalidInputError, match="'one', 'flip', 'shifts', 'crops'; got 'all'"):
        model.predict(images, views="all")
    with pytest.raises(dkm.InvalidInputError, match="by one view"):
        model.predict(images, views="flip", joint=True)
    vectors = dkm.fully_connected(4, 2, inducing=3).initialise(torch.rand(9, 4), seed=0)
    with pytest.raises(dkm.InvalidInputError, match="views of images"):
        vectors.predict(torch.rand(3, 4), views="flip")
