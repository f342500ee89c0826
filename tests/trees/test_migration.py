"""A hierarchy that grows: the mapping of classes, and a head that is carried over."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import earthwork as ew
from earthwork import trees

OLD = trees.from_paths(["animal/cat", "animal/dog", "vehicle/car/van", "vehicle/car/cab", "vehicle/ship"])


def test_a_class_is_added_beside_its_siblings():
    new = trees.from_paths(
        ["vehicle/car/bus", "animal/dog", "animal/fox", "animal/cat", "vehicle/car/van", "vehicle/ship", "rock/granite"]
    )
    migration = trees.migrate(OLD, new)
    assert migration.sources == ((2,), (1,), (0, 1), (0,), (2,), (4,), (0, 1, 2, 4))
    assert migration.added == ("bus", "fox", "granite")
    assert migration.removed == ("cab",)
    assert migration.kept.tolist() == [3, 1, 4, -1, 5]
    assert migration.labels(torch.tensor([0, 3, 4])).tolist() == [3, -100, 5]
    assert "3 added: bus, fox, granite, 1 removed: cab" in repr(migration)


def test_a_class_that_is_divided_and_classes_that_are_joined():
    new = trees.from_paths(["animal/cat/tabby", "animal/cat/lynx", "animal/dog", "vehicle/car", "vehicle/ship"])
    migration = trees.migrate(OLD, new)
    assert migration.sources == ((0,), (0,), (1,), (2, 3), (4,))
    assert trees.migrate(OLD.bin_names, new).sources[:3] == ((0,), (0,), (1,)), "names alone are enough"


def test_names_that_changed():
    new = trees.relabel(OLD, {"cab": "taxi", "animal": "beast"})
    assert trees.migrate(OLD, new, {"cab": "taxi"}).sources == tuple((i,) for i in range(5))
    assert trees.migrate(OLD, new).sources[3] == (2,)
    with pytest.raises(ValueError, match=r"renamed: not in the new hierarchy: 'taxy' \(near: 'taxi'\)"):
        trees.migrate(OLD, new, {"cab": "taxy"})
    with pytest.raises(ValueError, match=r"renamed: not in the old hierarchy: 'taxi'"):
        trees.migrate(OLD, new, {"taxi": "taxi"})


def test_the_order_of_classes_does_not_matter():
    rng = np.random.default_rng(0)
    names = [f"{a}/{a}{b}" for a in "abc" for b in range(4)]
    old = trees.from_paths(rng.permutation(names).tolist())
    new = trees.from_paths(rng.permutation(names).tolist())
    rows = torch.randn(12, 3)
    carried = trees.migrate(old, new).carry(rows)
    for place, name in enumerate(new.bin_names):
        assert torch.equal(carried[place], rows[old.bin_names.index(name)])


def test_a_head_knows_a_new_class_by_its_siblings():
    """A trained head answers the group of a new class at once, and the old classes as before."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(5, 16, generator=generator)
    centers[:2] += 3 * torch.randn(16, generator=generator)
    labels = torch.randint(5, (500,), generator=generator)
    x = centers[labels] + 0.3 * torch.randn(500, 16, generator=generator)
    head = torch.nn.Linear(16, 5)
    optimizer = torch.optim.Adam(head.parameters(), 0.05)
    for _ in range(100):
        optimizer.zero_grad()
        ew.EMDLoss(OLD)(head(x), labels).backward()
        optimizer.step()
    new = trees.from_paths([*trees.to_paths(OLD), "root/animal/fox"])
    migration = trees.migrate(OLD, new)
    carried = torch.nn.Linear(16, 6)
    with torch.no_grad():
        carried.weight.copy_(migration.carry(head.weight))
        carried.bias.copy_(migration.carry(head.bias))
        p = carried(x).softmax(-1)
        torch.testing.assert_close(carried(x)[:, migration.kept], head(x))
        fox = centers[:2].mean(0) + 0.3 * torch.randn(50, 16, generator=generator)
        group = new.distance(ew.decide(carried(fox).softmax(-1), new), torch.tensor(5))
    assert (p.argmax(-1) == migration.labels(labels)).float().mean() > 0.9
    assert (group <= 2).float().mean() > 0.9
    with pytest.raises(ValueError, match=r"rows: expected 5, one for each old class, got \(6, 16\)"):
        migration.carry(carried.weight)
    with pytest.raises(ValueError, match="labels: expected old class indices from 0 to 4, got 5"):
        migration.labels(torch.tensor([5]))


def test_checkpoints_say_their_classes_if_asked(tmp_path):
    """Reversed names have the right shape, and are refused all the same."""
    tree = ew.trees.from_paths(["animal/cat", "animal/dog", "vehicle/caffè 🚐"])
    backwards = ew.trees.from_paths(["vehicle/caffè 🚐", "animal/dog", "animal/cat"])

    def network(space: ew.Space, asked: bool = True) -> nn.Module:
        head, loss = nn.Linear(4, 3), ew.EMDLoss(space, weight=torch.ones(3))
        if asked:
            ew.trees.record_classes(head, space)
            ew.trees.record_classes(loss)
        return nn.ModuleDict({"head": head, "loss": loss})

    first = network(tree)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")
    assert set(state) == {"head.weight", "head.bias", "head.classes", "loss.weight", "loss.classes"}
    assert ew.trees.recorded_classes(state) == tree.bin_names
    copied = pickle.loads(pickle.dumps(copy.deepcopy(network(tree))))
    copied.load_state_dict(state)
    assert torch.equal(copied["head"].weight, first["head"].weight)
    for strict in (True, False):
        with pytest.raises(
            RuntimeError, match=r"head.classes: expected 'caffè 🚐' as class 0, .* 'cat'; ew.trees.migr"
        ):
            network(backwards).load_state_dict(state, strict=strict)
    for count in (3, 4):
        unnamed = ew.trees.record_classes(nn.Identity(), ew.Chain(count))
        with pytest.raises(
            RuntimeError, match=f"expected {count} classes without names, got a checkpoint for 3 classes"
        ):
            unnamed.load_state_dict({"classes": state["head.classes"]})
    plain = network(tree, asked=False).state_dict()
    assert not [key for key in plain if "classes" in key]
    with pytest.raises(RuntimeError, match=r"Missing key.*classes"):
        network(tree).load_state_dict(plain)
    network(tree).load_state_dict(plain, strict=False)
    carried = ew.trees.migrate(ew.trees.recorded_classes(state), backwards).carry(state["head.weight"])
    assert torch.equal(carried, state["head.weight"].flip(0))


def test_recorded_classes_without_names_or_space():
    state = ew.trees.record_classes(ew.Head(4, ew.Ring(5))).state_dict()
    assert ew.trees.recorded_classes(state) == 5
    with pytest.raises(TypeError, match="space: expected"):
        ew.trees.record_classes(nn.Linear(4, 5))
    with pytest.raises(ValueError, match="state: expected an entry `classes`"):
        ew.trees.recorded_classes({})
    other = {f"new.{key}": x for key, x in ew.trees.record_classes(ew.Head(4, ew.Ring(6))).state_dict().items()}
    with pytest.raises(ValueError, match=r"state: expected the same classes everywhere, got 2: classes, new\.classes"):
        ew.trees.recorded_classes(state | other)
