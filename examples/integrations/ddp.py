"""DistributedDataParallel: two processes on one CPU, each with half of the batch."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import earthwork as ew


def train(rank: int, world: int, port: int) -> None:
    """One process. Only the model is wrapped: the loss has no parameters."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 16), torch.randint(10, (64,))
    model = nn.Linear(16, 10)
    loss_function = ew.EMDLoss(ew.trees.cifar10())
    (expected,) = torch.autograd.grad(loss_function(model(inputs), labels), [model.weight])

    wrapped = DistributedDataParallel(model)
    mine = slice(rank, None, world)
    loss_function(wrapped(inputs[mine]), labels[mine]).backward()
    # The mean of the processes' means is the mean over the whole batch, because the parts have the same size.
    torch.testing.assert_close(model.weight.grad, expected)
    if rank == 0:
        print("two halves give the gradient of the whole batch")
    dist.destroy_process_group()


def main(world: int = 2) -> None:
    """Start the processes and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, args=(world, port), nprocs=world)


if __name__ == "__main__":
    main()
