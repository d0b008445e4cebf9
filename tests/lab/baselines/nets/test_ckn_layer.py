"""A layer of a convolutional kernel network, against loops and against its kernel."""

import math

import pytest
import torch

from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.ckn_layer import CKNLayer, gaussian_weights, inverse_root, patches, pool

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def layer_of(*shape, **more):
    layer = CKNLayer(*shape, **more).double()
    layer.project()
    return layer


def random_maps(*shape):
    return torch.randn(shape, dtype=torch.float64)


def patch_at(maps, image, row, column, size):
    """One patch by hand, channel by channel, with zeros beyond the border."""
    _, channels, height, width = maps.shape
    before = (size - 1) // 2
    values = []
    for channel in range(channels):
        for i in range(size):
            for j in range(size):
                r, c = row + i - before, column + j - before
                inside = 0 <= r < height and 0 <= c < width
                values.append(maps[image, channel, r, c].item() if inside else 0.0)
    return torch.tensor(values, dtype=torch.float64)


def brute_force(layer, maps):
    """The layer, pixel by pixel, its matrix root by scipy."""
    from scipy.linalg import inv, sqrtm

    anchors, s = layer.anchors.detach(), layer.subsampling
    count, _, height, width = maps.shape
    p = len(anchors)
    gram = torch.tensor(
        [[math.exp(layer.alpha * (float(a @ b) - 1)) for b in anchors] for a in anchors],
        dtype=torch.float64,
    )
    root = torch.from_numpy(inv(sqrtm((gram + layer.epsilon * torch.eye(p)).numpy())).real)
    psi = torch.zeros(count, p, height, width, dtype=torch.float64)
    for n in range(count):
        for r in range(height):
            for c in range(width):
                x = patch_at(maps, n, r, c, layer.size)
                norm = float(x.norm())
                k = [math.exp(layer.alpha * (float(z @ x) / norm - 1)) for z in anchors]
                psi[n, :, r, c] = norm * root @ torch.tensor(k, dtype=torch.float64)
    if s == 1:
        return psi
    total = sum(math.exp(-(d**2) / s**2) for d in range(-s, s + 1)) ** 2
    rows, columns = range(0, height, s), range(0, width, s)
    out = torch.zeros(count, p, len(rows), len(columns), dtype=torch.float64)
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            for dr in range(-s, s + 1):
                for dc in range(-s, s + 1):
                    if 0 <= r + dr < height and 0 <= c + dc < width:
                        weight = math.exp(-(dr**2 + dc**2) / s**2) / total
                        out[:, :, i, j] += weight * psi[:, :, r + dr, c + dc]
    return out


@pytest.mark.parametrize(("size", "subsampling"), [(3, 2), (2, 3), (1, 1), (3, 1)])
def test_a_layer_is_the_loop_over_pixels(size, subsampling):
    layer = layer_of(2, 5, size, subsampling, alpha=3.0, epsilon=0.01)
    maps = random_maps(2, 2, 5, 7)
    torch.testing.assert_close(layer(maps).detach(), brute_force(layer, maps), **CLOSE)


def exact_kernel(layer, x, y):
    """K(x, y) of patches in columns."""
    nx, ny = x.norm(dim=0), y.norm(dim=0)
    return nx.unsqueeze(1) * ny * layer.kappa((x / nx).mT @ (y / ny))


def test_inner_products_are_the_nystrom_approximation():
    layer = layer_of(2, 6, 3, epsilon=1e-3)
    x = random_maps(1, 18, 20)
    features = layer.features(x)[0].detach()
    unit = layer.anchors.detach().mT
    across = exact_kernel(layer, unit, x[0])
    inside = exact_kernel(layer, unit, unit) + 1e-3 * torch.eye(6, dtype=torch.float64)
    nystrom = across.mT @ torch.linalg.solve(inside, across)
    torch.testing.assert_close(features.mT @ features, nystrom, **CLOSE)


def test_inner_products_are_exact_where_the_anchors_are_the_patches():
    x = random_maps(1, 18, 12)
    layer = layer_of(2, 12, 3, epsilon=1e-13)
    layer.set_anchors(x[0].mT)
    features = layer.features(x)[0].detach()
    kernel = exact_kernel(layer, x[0], x[0])
    torch.testing.assert_close(features.mT @ features, kernel, rtol=1e-7, atol=1e-7)
    fewer = layer_of(2, 5, 3, epsilon=1e-13)
    fewer.set_anchors(x[0].mT[:5])
    few = fewer.features(x)[0].detach()
    # A projection: never more than the kernel, and short of it for patches outside the span.
    assert float(torch.linalg.eigvalsh(kernel - few.mT @ few)[0]) > -1e-8
    assert float((kernel - few.mT @ few).diagonal()[5:].min()) > 0.1


def test_patches_that_are_zero_have_no_features_and_finite_gradients():
    layer = layer_of(1, 4, 3, 2)
    maps = torch.zeros(1, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    out = layer(maps)
    assert float(out.detach().abs().max()) < 1e-4
    out.sum().backward()
    assert maps.grad.isfinite().all()
    assert layer.anchors.grad.isfinite().all()


def test_gradients_of_a_layer_are_those_of_differences():
    layer = layer_of(1, 3, 2, 2)
    maps = random_maps(1, 1, 3, 3).requires_grad_()
    anchors = layer.anchors.detach().clone().requires_grad_()

    def run(x, z):
        return torch.func.functional_call(layer, {"anchors": z}, (x,))

    assert torch.autograd.gradcheck(run, (maps, anchors))


def test_the_inverse_root_and_its_derivative():
    half = random_maps(5, 5)
    matrix = (half @ half.mT + torch.eye(5)).requires_grad_()
    root = inverse_root(matrix)
    eye = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(root @ matrix @ root, eye, **CLOSE)
    torch.testing.assert_close(root, root.mT, rtol=1e-12, atol=1e-12)

    def symmetric(x):
        return inverse_root((x + x.mT) / 2)

    assert torch.autograd.gradcheck(symmetric, matrix)
    equal = (2 * eye).requires_grad_()  # where the derivative of eigenvectors does not exist
    assert torch.autograd.gradcheck(symmetric, equal)


def test_pooling_keeps_constants_inside_and_the_sizes_of_convolutions():
    maps = torch.ones(1, 2, 9, 7, dtype=torch.float64)
    pooled = pool(maps, 3)
    assert pooled.shape == (1, 2, 3, 3)
    torch.testing.assert_close(pooled[0, 0, 1, 1], torch.tensor(1.0, dtype=torch.float64))
    weights = gaussian_weights(2)
    assert weights.argmax() == 2
    torch.testing.assert_close(weights, weights.flip(0))


def test_patches_of_even_size_keep_the_size_of_the_map():
    assert patches(random_maps(1, 3, 4, 5), 2).shape == (1, 12, 20)


def test_anchors_stay_on_the_sphere():
    layer = CKNLayer(1, 4)
    with torch.no_grad():
        layer.anchors.mul_(3).add_(0.1)
    layer.project()
    torch.testing.assert_close(layer.anchors.detach().norm(dim=1), torch.ones(4))


def test_bad_input_is_refused():
    layer = CKNLayer(2, 4)
    with pytest.raises(InvalidInputError, match=r"takes maps \(N, 2, height"):
        layer(torch.zeros(1, 3, 5, 5))
    with pytest.raises(InvalidInputError, match=r"anchors must be \(4, 18\), got \(4, 17\)"):
        layer.set_anchors(torch.zeros(4, 17))
    with pytest.raises(InvalidInputError, match="filters must be a positive integer"):
        CKNLayer(2, 0)
    with pytest.raises(InvalidInputError, match="alpha must be a positive"):
        CKNLayer(2, 4, alpha=-1.0)
