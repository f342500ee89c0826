"""torch.compile: the whole training step, model and loss, as one graph without breaks."""

import torch
from torch import nn

import earthwork as ew


def main() -> float:
    """Compile a step and compare it with the uncompiled one; returns the largest difference of the gradients."""
    torch.manual_seed(0)
    tree = ew.trees.cifar100()
    model = nn.Linear(32, 100)
    loss_function = ew.MixedLoss((0.5, ew.EMDLoss(tree)), (0.5, nn.CrossEntropyLoss()))

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = loss_function(model(inputs), labels)
        return loss

    # The default backend, "inductor", needs a C++ compiler; "aot_eager" traces the same graph without one.
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    inputs, labels = torch.randn(16, 32), torch.randint(100, (16,))
    (plain_gradient,) = torch.autograd.grad(step(inputs, labels), [model.weight])
    (compiled_gradient,) = torch.autograd.grad(compiled(inputs, labels), [model.weight])
    difference = (plain_gradient - compiled_gradient).abs().max().item()
    print(f"the gradients differ by {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
