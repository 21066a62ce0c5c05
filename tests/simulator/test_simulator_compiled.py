"""The compiled library computes what torch computes, at each of its levels and for every size."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_worlds import pictures
from torch.nn import functional

from kasync import kernel, models
from kasync.work import compiled
from kasync.work.layers import Chain
from kasync.work.objective import default_loss

pytestmark = pytest.mark.skipif(not kernel.available(), reason="the library was not built")


@pytest.fixture(params=kernel.LEVELS)
def level(request):
    """The library up to these instructions."""
    if kernel.instructions(request.param) != request.param:
        pytest.skip(f"no {request.param} instructions on this machine")
    yield request.param
    kernel.instructions(kernel.LEVELS[-1])


@st.composite
def convolutions(draw):
    """Weights, padding, and pictures that leave something."""
    outputs, inputs = draw(st.integers(1, 14)), draw(st.integers(1, 5))
    tall, broad = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    padding = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    high, wide = draw(st.integers(tall, tall + 9)), draw(st.integers(broad, broad + 50))
    return (outputs, inputs, tall, broad), padding, (high, wide), draw(st.integers(0, 1000))


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(mine, expected):
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(convolution=convolutions(), samples=st.integers(1, 3), has_bias=st.booleans())
def test_a_convolution_is_that_of_torch(level, convolution, samples, has_bias):
    shape, padding, size, seed = convolution
    x, weight = random(samples, shape[1], *size, seed=seed), random(*shape, seed=seed + 1)
    bias = random(shape[0], seed=seed + 2) if has_bias else None
    assume(compiled.convolves(x, weight.shape, padding))
    close(compiled.convolve(x, weight, bias, padding), functional.conv2d(x, weight, bias, padding=padding))


@RELAXED
@given(convolution=convolutions(), n=st.integers(1, 3), m=st.integers(1, 3), has_bias=st.booleans())
def test_every_client_gets_the_weight_gradient_of_its_own_samples(level, convolution, n, m, has_bias):
    shape, padding, size, seed = convolution
    x, weight = random(n * m, shape[1], *size, seed=seed), random(*shape, seed=seed + 1).requires_grad_()
    bias = torch.zeros(shape[0], requires_grad=True)
    y = functional.conv2d(x, weight, bias, padding=padding)
    grad = random(*y.shape, seed=seed + 2)
    width = weight.numel() + has_bias * len(bias)
    table = torch.full((n, 2 + width + 3), 7.0)  # rows with other things on both sides
    compiled.weights(grad, x, weight.shape, padding, has_bias, kernel.Rows(table, list(range(n))), 2)
    for client in range(n):
        mine = slice(client * m, (client + 1) * m)
        wanted = torch.autograd.grad(y[mine], (weight, bias), grad[mine], retain_graph=True)
        expected = torch.cat([wanted[0].flatten(), wanted[1]])[:width]
        close(table[client, 2 : 2 + width], expected)
    assert bool((table[:, :2] == 7).all())
    assert bool((table[:, 2 + width :] == 7).all())


@RELAXED
@given(
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 20),
    n=st.integers(1, 3),
    m=st.integers(1, 9) | st.integers(200, 300),  # few samples, all their inputs at once; many, only some of them
    bias=st.booleans(),
)
def test_a_dense_layer_gives_every_client_the_products_of_its_own_samples(level, inputs, outputs, n, m, bias):
    grad, x = random(n, m, outputs), random(n, m, inputs, seed=1)
    size = outputs * inputs
    table = torch.full((4, 3 + size + outputs + 2), 7.0)
    chosen = [3, 0, 2][:n]
    compiled.dense(grad, x, bias, kernel.Rows(table, chosen), 3)
    close(table[chosen, 3 : 3 + size].view(n, outputs, inputs), torch.bmm(grad.mT, x))
    if bias:
        close(table[chosen, 3 + size : 3 + size + outputs], grad.sum(1))
        table[chosen, 3 + size : 3 + size + outputs] = 7.0
    table[chosen, 3 : 3 + size] = 7.0
    assert bool((table == 7).all())  # nothing else was written


@RELAXED
@given(planes=st.integers(0, 5), high=st.integers(1, 5), wide=st.integers(1, 40), seed=st.integers(0, 1000))
def test_the_largest_of_four_and_its_gradient_are_those_of_torch_to_the_bit(level, planes, high, wide, seed):
    x = random(2, planes, 2 * high, 2 * wide, seed=seed).mul(2).round().requires_grad_()  # many are equal
    expected = functional.max_pool2d(x, 2) if planes else x.new_empty(2, 0, high, wide)
    y = compiled.pool(x.detach())
    assert torch.equal(y, expected)
    if planes:
        grad = random(*y.shape, seed=seed + 1)
        assert torch.equal(compiled.unpool(x.detach(), y, grad), torch.autograd.grad(expected, x, grad)[0])


@pytest.mark.parametrize("wide", [6, 40])
@pytest.mark.parametrize("place", range(4))
def test_one_value_that_is_no_number_is_not_lost(level, wide, place):
    x = random(1, 1, 4, wide)
    x[0, 0, place // 2, 2 + place % 2] = torch.nan
    y = compiled.pool(x)
    assert y.isnan().sum() == 1
    assert y[0, 0, 0, 1].isnan()


def test_what_the_library_does_not_take_is_left_to_torch():
    x, shape = random(1, 3, 12, 12), torch.Size((2, 3, 5, 5))
    assert compiled.convolves(x, shape, (0, 0))
    assert not compiled.convolves(x.double(), shape, (0, 0))
    assert not compiled.convolves(x[..., ::2], torch.Size((2, 3, 1, 1)), (0, 0))
    assert not compiled.convolves(x[..., :11].contiguous(), shape, (0, 0))  # fewer columns than a vector has
    assert not compiled.convolves(random(1, 5, 12, 12), torch.Size((2, 5, 5, 5)), (0, 0))


@pytest.mark.parametrize(("model", "shape"), [(models.lenet(), (3, 32, 32)), (models.emnist_cnn(), (1, 28, 28))])
def test_a_network_gives_the_same_with_and_without_the_library(monkeypatch, model, shape):
    params = torch.cat([p.detach().flatten() for p in model.parameters()])
    x, labels = random(6, *shape), torch.arange(6)
    ways = []
    for there in (True, False):
        monkeypatch.setattr(kernel, "available", lambda there=there: there)
        out, table = torch.full((3, len(params)), torch.nan), torch.full((7, len(params)), torch.nan)
        batch = (params, x, labels, torch.full((6,), 0.5), default_loss(pictures()))
        losses = Chain.of(model).gradients(*batch, out)
        Chain.of(model).gradients(*batch, kernel.Rows(table, [5, 0, 3]))
        assert torch.equal(table[[5, 0, 3]], out)
        assert bool(table[[1, 2, 4, 6]].isnan().all())
        ways.append((out, losses))
    assert not torch.equal(ways[0][0], ways[1][0])  # or the library was not asked
    torch.testing.assert_close(ways[0], ways[1], rtol=1e-3, atol=1e-6)
