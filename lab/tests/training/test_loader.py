from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earthwork_lab.training.arrays import EpochPlan, ResumableLoader, crop_and_flip
from earthwork_lab.training.data import Examples, InMemory, subset


def plan(count=23, batch=6, seed=1, **options):
    return EpochPlan(count, batch, seed, **{"shuffle": True, "margin": 2, **options})


def loader(**options):
    data = torch.arange(23.0)[:, None]
    return ResumableLoader(Examples(InMemory(data), torch.arange(23)), plan(**options), workers=0)


def indices(batches):
    return [batch.labels.tolist() for batch in batches]


def test_epoch_same_whenever_it_asked():
    first, second = plan(), plan()
    second.set_epoch(5)
    list(second)
    for epoch in (3, 0, 3):
        first.set_epoch(epoch)
        second.set_epoch(epoch)
        for a, b in zip(first, second, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_epochs_and_seeds_differ():
    orders = []
    for seed, epoch in ((1, 0), (1, 1), (2, 0)):
        one = plan(seed=seed)
        one.set_epoch(epoch)
        orders.append(torch.cat([batch.indices for batch in one]).tolist())
    assert len({tuple(order) for order in orders}) == 3


def test_training_leaves_out_rest_validation_nothing():
    assert [len(batch.indices) for batch in plan()] == [6, 6, 6]
    val = torch.cat([batch.indices for batch in plan(shuffle=False)])
    assert val.tolist() == list(range(23))
    assert [len(batch.indices) for batch in plan(count=4, batch=6)] == [4]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_processes_share_every_global_batch(count, per_process, world_size):
    if count < world_size:
        return
    whole = [b.indices.tolist() for b in plan(count=count, batch=per_process * world_size)]
    parts = [
        [b.indices.tolist() for b in plan(count=count, batch=per_process * world_size, rank=r, world_size=world_size)]
        for r in range(world_size)
    ]
    if count >= per_process * world_size:
        assert [sorted(chain(*shares)) for shares in zip(*parts, strict=True)] == [sorted(b) for b in whole]
    assert all(len(shares[0]) == len(share) for shares in zip(*parts, strict=True) for share in shares)


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_loader_goes_on_where_another_stopped(done):
    one = loader()
    one.sampler.set_epoch(4)
    batches = iter(one)
    used = [next(batches) for _ in range(done)]
    other = loader()
    other.load_state_dict(one.state_dict())
    other.sampler.set_epoch(4)
    whole = loader()
    whole.sampler.set_epoch(4)
    assert indices([*used, *other]) == indices(whole)
    other.sampler.set_epoch(5)
    whole.sampler.set_epoch(5)
    assert indices(other) == indices(whole)


def test_workers_give_same_batches():
    data = Examples(InMemory(torch.arange(23.0)[:, None]), torch.arange(23))
    with_workers = ResumableLoader(data, plan(), workers=1)
    for epoch in (0, 1):
        with_workers.sampler.set_epoch(epoch)
        alone = loader()
        alone.sampler.set_epoch(epoch)
        assert indices(with_workers) == indices(alone)


def test_refuses_batch_that_cannot_be_shared():
    with pytest.raises(ValueError, match=r"batch_size: expected a multiple of the 2 processes .* got 5 of 23 examples"):
        plan(batch=5, rank=0, world_size=2)
    with pytest.raises(ValueError, match=r"at least one example for each, got 0 of 1 examples"):
        plan(count=1, batch=4, rank=0, world_size=2)


def test_crops_are_those_of_reflected_padding():
    images = torch.arange(2 * 5 * 6 * 3).reshape(2, 5, 6, 3).float()
    shifts = torch.tensor([[2, -1], [-2, 2]])
    flips = torch.tensor([False, True])
    padded = torch.nn.functional.pad(images.permute(0, 3, 1, 2), (2, 2, 2, 2), mode="reflect").permute(0, 2, 3, 1)
    expected = torch.stack([padded[i, 2 + r : 7 + r, 2 + c : 8 + c] for i, (r, c) in enumerate(shifts.tolist())])
    expected[1] = expected[1].flip(1)
    assert torch.equal(crop_and_flip(images, shifts, flips), expected)


@given(st.integers(1, 5), st.integers(0, 3), st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_subset_takes_so_many_of_each_class(per_class, seed, labels):
    y = np.array(labels)
    chosen = subset(y, per_class, seed)
    assert len(set(chosen.tolist())) == len(chosen)
    for label in set(labels):
        assert (y[chosen] == label).sum() == min(per_class, labels.count(label))
    assert np.array_equal(chosen, subset(y, per_class, seed))
    assert len(subset(y, None, seed)) == len(y)
