"""Classes and rows sharded over the two axes of a mesh: four processes train as one does.

Run it with ``torchrun --standalone --nproc-per-node 4 examples/integrations/sharded.py``.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

import earthwork as ew

STEPS, ROWS, FEATURES = 5, 32, 16


def make_model(classes: int) -> nn.Sequential:
    """A small network; its last layer has a row for each class."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, classes))


def make_batch(step: int, tree: ew.Tree) -> tuple[torch.Tensor, torch.Tensor]:
    """Features around a point for each class, the same in every process; classes near in the tree have near points."""
    generator = torch.Generator().manual_seed(step)
    points = tree.potential(torch.randn(FEATURES, tree.num_edges, generator=torch.Generator().manual_seed(99))).T
    labels = torch.randint(tree.num_bins, (ROWS,), generator=generator)
    return points[labels] + torch.randn(ROWS, FEATURES, generator=generator), labels


def train_alone(tree: ew.Tree, loss_function: nn.Module) -> list[float]:
    """The losses of a single process with all rows and classes."""
    model, losses = make_model(tree.num_bins), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        features, labels = make_batch(step, tree)
        loss = loss_function(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_sharded(tree: ew.Tree, loss_function: nn.Module) -> list[float]:
    """The same in four processes: FSDP2 for the rows, and the last layer sharded by classes."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "classes"))
    model, losses = make_model(tree.num_bins), []
    by_class = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh["classes"], {"2": by_class})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = slice(mesh.get_local_rank("data"), None, 2)
    for step in range(STEPS):
        features, labels = make_batch(step, tree)
        with loss_parallel():  # for the cross entropy in the mixture; the losses of this library do not need it
            logits = model(features[mine])
            assert isinstance(logits, DTensor), "a shard of the classes in each process"
            loss = loss_function(logits, labels[mine])
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        # FSDP averages the gradients over its processes; so is the loss, for the log.
        value = loss.full_tensor().detach().clone()
        dist.all_reduce(value, group=mesh.get_group("data"))
        losses.append(value.item() / 2)
    return losses


def main() -> None:
    """Train both ways and compare."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    tree = ew.trees.cifar100().sharding(2).tree
    loss_function = ew.MixedLoss((0.5, ew.EMDLoss(tree)), (0.5, nn.CrossEntropyLoss()))
    alone, sharded = train_alone(tree, loss_function), train_sharded(tree, loss_function)
    torch.testing.assert_close(torch.tensor(sharded), torch.tensor(alone), rtol=1e-5, atol=1e-5)
    if dist.get_rank() == 0:
        print(f"four processes as one: loss {alone[0]:.4f} to {alone[-1]:.4f}, {sharded[0]:.4f} to {sharded[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
