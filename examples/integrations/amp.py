"""Automatic mixed precision: the model computes in half precision, the loss in float32 and float64."""

import torch
from torch import nn

import earthwork as ew


def main(steps: int = 60) -> float:
    """Train under autocast; returns the last loss."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = torch.float16 if device == "cuda" else torch.bfloat16
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 100)).to(device)
    loss_function = ew.EMDLoss(ew.trees.cifar100()).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=half == torch.float16)
    inputs = torch.randn(256, 32, device=device)
    labels = inputs[:, :5].argmax(-1) * 20

    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=half):
            logits = model(inputs)
            loss = loss_function(logits, labels)  # half precision in, float32 out
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f} from logits in {logits.dtype}")
    return loss.item()


if __name__ == "__main__":
    main()
