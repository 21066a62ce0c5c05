"""One pass through a chain of layers gives each client the gradient that autograd gives it alone."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive import flat
from torch import nn
from torch.nn import functional

from kasync import models
from kasync.work.layers import Chain, Convolution


def span(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """The output size of a convolution or pool."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@st.composite
def geometries(draw, size: tuple[int, int], pool: bool):
    """Kernel, stride, padding and dilation, each a pair, that leave something of a picture of this size."""
    pairs = []
    for length in size:
        kernel = draw(st.integers(1, 3))
        padding = draw(st.integers(0, kernel // 2 if pool else 2))
        dilation = draw(st.integers(1, 2))
        if span(length, kernel, 1, padding, dilation) < 1:
            kernel, padding, dilation = 1, 0, 1
        pairs.append((kernel, draw(st.integers(1, 2)), padding, dilation))
    left = tuple(span(length, *pair) for length, pair in zip(size, pairs, strict=True))
    return tuple(zip(*pairs, strict=True)), left


@st.composite
def chains(draw):
    """A random chain, and the shape of its input."""
    channels, size = draw(st.integers(1, 2)), (draw(st.integers(4, 9)), draw(st.integers(4, 9)))
    shape = (channels, *size)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(0, 3))):
        outputs = draw(st.integers(1, 3))
        geometry, size = draw(geometries(size, pool=False))
        layers.append(nn.Conv2d(channels, outputs, *geometry, bias=draw(st.booleans())))
        channels = outputs
        if draw(st.booleans()):
            layers.append(nn.ReLU())
        if draw(st.booleans()):
            geometry, size = draw(geometries(size, pool=True))
            layers.append(nn.MaxPool2d(*geometry))
    width = channels * size[0] * size[1]
    layers.append(nn.Flatten())
    for _ in range(draw(st.integers(0, 2))):
        wide = draw(st.integers(1, 4))
        layers += [nn.Linear(width, wide, bias=draw(st.booleans())), nn.ReLU()]
        width = wide
    layers.append(nn.Linear(width, 3, bias=draw(st.booleans())))
    torch.manual_seed(draw(st.integers(0, 1000)))
    for layer in layers:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    cut = draw(st.integers(0, len(layers)))
    nested = [nn.Sequential(*layers[:cut]), *layers[cut:]] if draw(st.booleans()) else layers
    return nn.Sequential(*nested).double(), shape


def by_layer(model, x):
    """What each layer makes of the inputs."""
    for layer in model.modules():
        if not isinstance(layer, nn.Sequential):
            x = layer(x)
            yield x


def per_sample(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none")


@settings(max_examples=60, deadline=None)
@given(chain=chains(), n=st.integers(1, 4), m=st.integers(1, 3), seed=st.integers(0, 1000), data=st.data())
def test_a_chain_gives_every_client_the_gradient_that_autograd_gives(chain, n, m, seed, data):
    model, shape = chain
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n * m, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (n * m,), generator=generator)
    used = [data.draw(st.integers(1, m)) for _ in range(n)]  # samples of each client; the rest is padding
    weights = torch.cat([(torch.arange(m) < count).double() / count for count in used])
    for values in by_layer(model, x):
        assume(bool(values.isfinite().all()))  # a dilated window may lie on padding alone, whose largest value is -inf
    params = flat(model)
    out = torch.full((n, len(params)), torch.nan, dtype=torch.float64)
    mine = Chain.of(model)
    losses = mine.gradients(params, x, labels, weights, per_sample, out)
    torch.testing.assert_close(mine.forward(params, x), model(x))
    for client, count in enumerate(used):
        chosen = slice(client * m, client * m + count)
        loss = functional.cross_entropy(model(x[chosen]), labels[chosen])
        expected = torch.autograd.grad(loss, list(model.parameters()))
        torch.testing.assert_close(out[client], torch.cat([g.reshape(-1) for g in expected]))
        torch.testing.assert_close(losses[client], loss.detach())


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (models.emnist_cnn(), (1, 28, 28)),
        (models.lenet(), (3, 32, 32)),
        (models.celeba_cnn(), (3, 84, 84)),
        (models.mlp(28 * 28), (1, 28, 28)),
        (models.logistic(60), (60,)),
    ],
    ids=["emnist_cnn", "lenet", "celeba_cnn", "mlp", "logistic"],
)
def test_every_network_of_the_paper_is_a_chain_and_gives_what_autograd_gives(model, shape):
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(4, *shape, generator=generator), torch.randint(0, 2, (4,), generator=generator)
    out = torch.full((2, len(flat(model))), torch.nan)
    Chain.of(model).gradients(flat(model), x, labels, torch.full((4,), 0.5), per_sample, out)
    for client in range(2):
        chosen = slice(2 * client, 2 * client + 2)
        loss = functional.cross_entropy(model(x[chosen]), labels[chosen])
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        torch.testing.assert_close(out[client], expected, atol=1e-6, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(chain=chains(), n=st.integers(1, 3), m=st.integers(1, 3))
def test_the_way_a_gpu_takes_through_a_convolution_gives_the_same_on_a_cpu(chain, n, m):
    model, shape = chain
    params, x = flat(model), torch.randn(n * m, *shape, dtype=torch.float64)
    made = Chain.of(model)
    for layer, held in zip(made.layers, made.held(params), strict=True):
        y, _ = layer.forward(held, x)
        assume(bool(y.isfinite().all()))  # as above
        if isinstance(layer, Convolution):
            grad = torch.randn_like(y)
            ways = [torch.zeros(n, layer.stop - layer.start, dtype=torch.float64) for _ in range(2)]
            layer._one_by_one(grad, x, ways[0])
            layer._unfolded(grad, x, ways[1])
            torch.testing.assert_close(*ways)
        x = y


def test_a_layer_that_a_hook_changes_is_none_of_a_chain():
    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

    assert Chain.of(network()) is not None
    for change in (
        lambda model: model[1].register_forward_hook(lambda module, given, made: 2 * made),
        lambda model: model[2].register_forward_pre_hook(lambda module, given: (2 * given[0],)),
        lambda model: model.register_full_backward_hook(lambda module, before, after: None),
        lambda model: setattr(model[2], "forward", torch.tanh),
    ):
        model = network()
        change(model)
        assert Chain.of(model) is None
