"""Rows and classes sharded over the two axes of a mesh: four processes train as one does.

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
from earthwork.metrics.functional import mean_distance

EPOCHS, ROWS, FEATURES = 3, 128, 64

Data = tuple[torch.Tensor, torch.Tensor]


def make_data(tree: ew.Tree, per_class: int, seed: int) -> Data:
    """Simulated features; the centres of the classes follow a random walk down the tree. The same in every process."""
    steps = torch.randn(FEATURES, tree.num_edges, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(tree.num_bins).repeat(per_class)
    noise = torch.randn(len(labels), FEATURES, generator=torch.Generator().manual_seed(seed))
    return tree.potential(steps).T[labels] + 3 * noise, labels


def make_model(classes: int) -> nn.Sequential:
    """A network without dropout and batch normalisation, so that it does not matter which process has which rows."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, classes))


def batches(data: Data) -> list[Data]:
    """The batches of all epochs, shuffled in the same way in every process."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(data[1]), generator=generator).split(ROWS) for _ in range(EPOCHS)]
    return [(data[0][rows], data[1][rows]) for order in orders for rows in order]


def train_alone(train: Data, val: Data, loss_function: ew.MixedLoss, tree: ew.Tree) -> tuple[list[float], float]:
    """The losses of a single process with all rows and classes, and the mean distance of its answers."""
    model, losses = make_model(tree.num_bins), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for features, labels in batches(train):
        loss = loss_function(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        distance = mean_distance(model(val[0]), val[1], tree, decision="least_risk", normalize="softmax")
    return losses, distance.item()


def train_sharded(train: Data, val: Data, loss_function: ew.MixedLoss, tree: ew.Tree) -> tuple[list[float], float]:
    """The same in four processes: FSDP2 for the rows, and the last layer sharded by classes."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "classes"))
    model, losses = make_model(tree.num_bins), []
    by_class = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh["classes"], {"2": by_class})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mine = slice(mesh.get_local_rank("data"), None, 2)
    for features, labels in batches(train):
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
    with torch.no_grad():
        distance = mean_distance(model(val[0]), val[1], tree, decision="least_risk", normalize="softmax")
    return losses, distance.item()


def main() -> None:
    """Train both ways and compare."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    tree = ew.trees.tiny_imagenet200().sharding(2).tree
    train, val = make_data(tree, 10, seed=1), make_data(tree, 20, seed=2)
    loss_function = ew.MixedLoss((0.5, ew.EMDLoss(tree)), (0.5, nn.CrossEntropyLoss()))
    alone, distance = train_alone(train, val, loss_function, tree)
    sharded, sharded_distance = train_sharded(train, val, loss_function, tree)
    difference = (torch.tensor(sharded) - torch.tensor(alone)).abs().max().item()
    if dist.get_rank() == 0:
        print(f"one process:    loss {alone[0]:.4f} to {alone[-1]:.4f}, mean distance {distance:.3f}")
        print(f"four processes: loss {sharded[0]:.4f} to {sharded[-1]:.4f}, mean distance {sharded_distance:.3f}")
        print(f"largest difference of the losses of {len(alone)} steps: {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
