"""The server's own gradient: on all of its samples, or on a part of them that is another one in every step."""

import numpy as np
import pytest
import torch
from small_worlds import vectors

from kasync import counter, models, server_gradient
from kasync.errors import UserError
from kasync.simulator import server


@pytest.fixture(scope="module")
def world():
    data = vectors()
    model = models.build("logistic", data, seed=0)
    params = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return model, data, data.server_sample(20), params


def test_a_batch_is_others_in_every_step_and_the_same_in_the_same_step(world):
    model, data, samples, params = world
    own = server_gradient(model, data, samples, batch=10, seed=3)
    first, again, next_one = (own(params, torch.tensor(step)) for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, next_one)
    other_seed = server_gradient(model, data, samples, batch=10, seed=4)
    assert not torch.allclose(first, other_seed(params, torch.tensor(0)))


def test_batches_are_unbiased_and_a_batch_of_all_is_all(world):
    model, data, samples, params = world
    whole = server_gradient(model, data, samples)(params)
    everything = server_gradient(model, data, samples, batch=20)(params, torch.tensor(5))
    assert torch.allclose(everything, whole, atol=1e-6)
    half = server_gradient(model, data, samples, batch=10)
    mean = torch.stack([half(params, torch.tensor(step)) for step in range(2000)]).mean(0)
    one = (half(params, torch.tensor(0)) - whole).norm()
    assert (mean - whole).norm() < 0.1 * one  # about 1/sqrt(2000) of it


def test_every_sample_is_drawn_equally_often_and_none_twice_in_a_batch(world):
    places = torch.from_numpy(counter.bits(7, counter.Stream.SERVER, np.arange(20)).view(np.int64))
    drawn = torch.stack(
        [server._mixed(places + torch.tensor(step) * server.GOLDEN).argsort()[:10] for step in range(2000)]
    )
    assert all(len(set(row)) == 10 for row in drawn.tolist())
    counts = torch.bincount(drawn.flatten(), minlength=20)  # 1000 each, deviation about 22
    assert (counts - 1000).abs().max() < 110


def test_the_mixing_is_that_of_the_counter(world):
    words = torch.tensor([0, 1, -5, 2**62, -(2**63)])
    expected = counter._mix(words.numpy().view(np.uint64))
    assert (server._mixed(words).numpy().view(np.uint64) == expected).all()


@pytest.mark.parametrize("batch", [0, 21])
def test_a_batch_that_the_samples_do_not_hold_is_refused(world, batch):
    model, data, samples, _ = world
    with pytest.raises(UserError, match=f"batch = {batch}: give 1 to 20"):
        server_gradient(model, data, samples, batch=batch)
