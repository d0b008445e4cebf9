"""Whitening."""

import pytest
import torch

from convdkm.data import ZCA, NoWhitening, Standardise, Whitening, load_idx, make_whitening
from convdkm.data.whitening import chosen_whitening, zca_of_few
from convdkm.errors import InvalidInputError, NotInitialisedError

KINDS = ["zca", "zca-paper", "zca-published", "standardise", "none"]
AXES = (0, 2, 3)


def correlated(count=300, shape=(2, 3, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.Size(shape).numel()
    basis = torch.randn(pixels, pixels, generator=generator)
    return (torch.randn(count, pixels, generator=generator) @ basis + 3).reshape(count, *shape)


def plain_zca(flat, epsilon):
    flat = flat - flat.mean(0)
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    return flat @ vectors @ torch.diag((values + epsilon * values.mean()) ** -0.5) @ vectors.T


def standardised(images):
    deviation = images.std(AXES, correction=0, keepdim=True)
    return (images - images.mean(AXES, keepdim=True)) / deviation


@pytest.mark.parametrize("epsilon", [0.1, 1e-3, 10.0])
def test_published_zca_subtracts_no_mean_image(epsilon):
    images = correlated() + torch.linspace(0, 9, 4)
    whitened = ZCA(epsilon, "published").fit(images)(images)
    flat = standardised(images.double()).flatten(1)
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    root = vectors @ torch.diag((values + epsilon * values.mean()) ** -0.5) @ vectors.T
    expected = standardised((flat @ root).reshape(images.shape))
    torch.testing.assert_close(whitened.double(), expected, rtol=1e-4, atol=1e-4)
    centred = ZCA(epsilon).fit(images)(images)
    assert float((whitened - centred).abs().max()) > 0.1


def test_zca_of_standardised_channels_equals_the_formula():
    images = correlated()
    whitened = ZCA(0.1).fit(images)(images)
    expected = plain_zca(standardised(images.double()).flatten(1), 0.1).reshape(images.shape)
    expected = expected / expected.std(AXES, correction=0, keepdim=True)
    torch.testing.assert_close(whitened.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whitened.std(AXES, correction=0), torch.ones(2), rtol=1e-4, atol=0)


@pytest.mark.parametrize("epsilon", [0.1, 1e-3, 10.0])
def test_paper_zca_equals_the_formula(epsilon):
    images = correlated()
    whitened = ZCA(epsilon, "paper").fit(images)(images)
    expected = plain_zca(images.flatten(1).double(), epsilon).reshape(images.shape)
    torch.testing.assert_close(whitened.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_covariance_of_whitened_images(epsilon):
    """Cov = U Λ (Λ + ελ̄)⁻¹ Uᵀ: the identity for ε = 0."""
    images = correlated(2000, (1, 3, 3)).double()
    whitened = ZCA(epsilon, "paper").fit(images)(images).flatten(1)
    flat = images.flatten(1)
    values, vectors = torch.linalg.eigh(torch.cov(flat.T, correction=0))
    expected = vectors @ torch.diag(values / (values + epsilon * values.mean())) @ vectors.T
    covariance = torch.cov(whitened.T, correction=0)
    torch.testing.assert_close(covariance, expected, rtol=0, atol=1e-4)


def test_zca_does_not_depend_on_the_order_or_number_of_chunks():
    images = correlated(5000, (1, 2, 3))
    mixed = images[torch.randperm(len(images))]
    first, second = ZCA().fit(images), ZCA().fit(mixed)
    torch.testing.assert_close(first.matrix, second.matrix, rtol=1e-6, atol=1e-7)
    flat = images.flatten(1).double()
    torch.testing.assert_close(first.mean.double(), flat.mean(0), rtol=1e-6, atol=0)


def test_zca_of_more_pixels_than_one_block_holds():
    images = correlated(700, (3, 14, 14))
    whitened = ZCA(1.0, "paper").fit(images)(images)
    expected = plain_zca(images.flatten(1).double(), 1.0).reshape(images.shape)
    torch.testing.assert_close(whitened.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_each_image_is_whitened_by_itself(kind):
    images = correlated()
    whitening = make_whitening(kind).fit(images)
    together = whitening(images)
    alone = torch.cat([whitening(image[None]) for image in images[:20]])
    torch.testing.assert_close(together[:20], alone, rtol=1e-4, atol=1e-4)
    assert together.shape == images.shape


@pytest.mark.parametrize("kind", KINDS)
def test_state_loads_into_a_fresh_instance(kind, tmp_path):
    images = correlated()
    fitted = make_whitening(kind).fit(images)
    torch.save(fitted.state_dict(), tmp_path / "state.pt")
    fresh = make_whitening(kind)
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(fresh(images), fitted(images))
    # As part of a larger module, and over what was fitted to other images.
    whole = torch.nn.ModuleDict({"whitening": make_whitening(kind).fit(correlated(20, (3, 2, 2)))})
    whole.load_state_dict({f"whitening.{key}": value for key, value in fitted.state_dict().items()})
    assert torch.equal(whole["whitening"](images), fitted(images))


def test_unfitted_state_is_empty_and_a_foreign_one_refused():
    assert not ZCA().state_dict()
    ZCA().load_state_dict({})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Standardise().load_state_dict(ZCA().fit(correlated()).state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_constant_pixels_are_not_blown_up(kind):
    images = correlated(200, (2, 5, 5)).sigmoid()
    images[:, :, 0] = 0
    images[:, :, :, -1] = 0
    whitening = make_whitening(kind).fit(images)
    whitened = whitening(images)
    assert whitened.isfinite().all()
    assert float(whitened.abs().max()) < 20
    lit = images.clone()
    lit[:, :, 0] = 1
    assert float(whitening(lit).abs().max()) < 40


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("variant", ["standardised", "published", "paper"])
def test_degenerate_images(variant, epsilon):
    constant = torch.full((10, 2, 3, 3), 0.5)
    assert float(ZCA(epsilon, variant).fit(constant)(constant).abs().max()) < 1e-5
    one_channel = torch.cat([torch.rand(40, 1, 3, 3), torch.zeros(40, 1, 3, 3)], 1)
    whitened = ZCA(epsilon, variant).fit(one_channel)(one_channel)
    assert float(whitened[:, 1].abs().max()) < 1e-5
    # Fewer images than pixels: the directions without variance stay without.
    few = torch.rand(5, 1, 4, 4)
    assert float(ZCA(epsilon, variant).fit(few)(few).abs().max()) < 20


def test_standardise():
    images = correlated()
    whitened = Standardise().fit(images)(images)
    torch.testing.assert_close(whitened.mean(AXES), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(whitened.std(AXES, correction=0), torch.ones(2), rtol=1e-5, atol=0)
    expected = (images - images.mean(AXES, keepdim=True)) / images.std(
        AXES, correction=0, keepdim=True
    )
    torch.testing.assert_close(whitened, expected, rtol=1e-4, atol=1e-5)
    constant = torch.full((4, 1, 2, 2), 0.25)
    assert torch.equal(Standardise().fit(constant)(constant), torch.zeros(4, 1, 2, 2))


def test_zca_of_few_images_makes_others_large():
    images = correlated(400, (2, 5, 5))
    sizes = {}
    for count in (20, 300):
        whitening = ZCA(1e-3).fit(images[:count])
        own, others = (whitening(part).square().mean() for part in (images[:count], images[300:]))
        sizes[count] = float(others / own)
    assert sizes[300] < 2
    assert sizes[20] > 10
    assert zca_of_few(50, (2, 5, 5)) is None
    assert "49 images of 50 values" in str(zca_of_few(49, (2, 5, 5)))


@pytest.mark.parametrize(
    ("kind", "count", "shape", "chosen", "said"),
    [
        ("auto", 50_000, (3, 32, 32), "zca", None),
        ("auto", 3072, (3, 32, 32), "zca", None),
        ("auto", 3071, (3, 32, 32), "standardise", "standardise in place of zca: ZCA fitted to"),
        ("auto", 10_000, (1, 64, 64), "zca", None),
        ("auto", 10_000, (1, 64, 65), "standardise", "standardise in place of zca: ZCA of images"),
        ("zca", 10_000, (1, 64, 65), "zca", None),
        ("zca", 10, (3, 32, 32), "zca", "standardise does not"),
        ("zca-paper", 10, (3, 32, 32), "zca-paper", "standardise does not"),
        ("zca-paper", 10_000, (2, 64, 65), None, "8,320 values.*8,192 .*standardise works"),
        *((kind, 10, (3, 200, 200), kind, None) for kind in ("standardise", "scale", "none")),
        ("bleach", 10, (3, 32, 32), None, "whitening must be one of 'auto', 'zca'"),
    ],
)
def test_zca_is_chosen_where_it_fits(kind, count, shape, chosen, said):
    told = []
    if chosen is None:
        with pytest.raises(InvalidInputError, match=said):
            chosen_whitening(kind, count, shape, told.append)
        assert not told
        return
    assert chosen_whitening(kind, count, shape, told.append) == chosen
    assert len(told) == (said is not None)
    assert all(said in text for text in told)


def test_no_whitening_is_the_identity():
    images = torch.rand(3, 1, 2, 2)
    assert NoWhitening()(images) is images
    assert NoWhitening().fit(images)(images) is images


def test_kinds_by_name():
    kinds = [make_whitening(kind, 0.5) for kind in KINDS]
    assert [type(kind) for kind in kinds] == [ZCA, ZCA, ZCA, Standardise, NoWhitening]
    assert [kind.variant for kind in kinds[:3]] == ["standardised", "paper", "published"]
    assert all(isinstance(kind, Whitening) for kind in kinds)
    assert kinds[0].epsilon == 0.5
    with pytest.raises(InvalidInputError, match=r"whitening must be one of 'zca'.*'pca'"):
        make_whitening("pca")
    with pytest.raises(InvalidInputError, match="variant must be one of"):
        ZCA(variant="other")
    for epsilon in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="epsilon"):
            ZCA(epsilon)


def test_use_before_fitting_and_other_shapes_are_refused():
    images = torch.rand(20, 1, 3, 3)
    for whitening in (ZCA(), Standardise()):
        with pytest.raises(NotInitialisedError, match="fit"):
            whitening(images)
        for bad in (torch.rand(20, 9), torch.rand(1, 1, 3, 3)):
            with pytest.raises(InvalidInputError, match="two or more images"):
                whitening.fit(bad)
        with pytest.raises(InvalidInputError, match="NaN"):
            whitening.fit(torch.full((3, 1, 2, 2), torch.nan))
    with pytest.raises(InvalidInputError, match="9 pixels, got 16"):
        ZCA().fit(images)(torch.zeros(2, 1, 4, 4))
    with pytest.raises(InvalidInputError, match="1 channels, got 3"):
        Standardise().fit(images)(torch.zeros(2, 3, 3, 3))


def test_large_images_are_refused_with_the_memory_they_would_take():
    images = torch.zeros(1, 1, 1, 1).expand(2, 3, 224, 224)
    with pytest.raises(
        InvalidInputError,
        match=r"150,528 values.*168.8 GiB, and 8,192 values.*standardise.*--image-size",
    ):
        ZCA().fit(images)
    assert Standardise().fit(images).mean is not None


def test_real_mnist_is_whitened(data_folder):
    data = load_idx("mnist", data_folder).subset(1000, 100)
    whitening = ZCA().fit(data.train_images)
    whitened = whitening(data.test_images)
    assert whitened.isfinite().all()
    assert 0.5 < float(whitened.std()) < 2


def test_scaling_alone_keeps_black_black():
    images = torch.rand(50, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    images[:, 1] *= 3
    scaled = make_whitening("scale").fit(images)(images)
    torch.testing.assert_close(scaled.std((0, 2, 3), correction=0), torch.ones(2))
    black = make_whitening("scale").fit(images)(torch.zeros(1, 2, 4, 4))
    assert not black.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_state_loads_and_is_half_as_long(kind):
    base = torch.rand(300, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    images = base + torch.tensor([1.0, 2.0, 0.5]).reshape(3, 1, 1) * base[:, :1]
    fitted = make_whitening(kind).fit(images)
    state = fitted.packed(3)
    again = make_whitening(kind)
    again.load_state_dict(state)
    assert torch.allclose(again(images), fitted(images), atol=1e-5)
    if kind.startswith("zca"):
        assert len(state["triangle"]) == 48 * 49 // 2
        fitted.matrix[0, 5] += 0.1  # symmetric no more
        assert fitted.packed(3).keys() == {"mean", "matrix"}
    assert make_whitening(kind).packed(3).keys() == make_whitening(kind).state_dict().keys()
