"""Plain PyTorch: handwritten digits as ordinal classes, with EMD² and cross entropy one to one."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import earthwork as ew


def main(epochs: int = 30) -> float:
    """Train a small network; returns how far it is off on average."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = map(torch.as_tensor, train_test_split(images / 16, labels, random_state=0))
    train_x, test_x = train_x.float(), test_x.float()

    digits = ew.Chain(10)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    loss_function = ew.MixedLoss((0.5, ew.EMDLoss(digits)), (0.5, nn.CrossEntropyLoss()))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for _ in range(epochs):
        for batch in torch.randperm(len(train_x)).split(64):
            optimizer.zero_grad()
            loss = loss_function(model(train_x[batch]), train_y[batch])
            loss.backward()
            optimizer.step()

    with torch.no_grad():
        p = model(test_x).softmax(-1)
    off = digits.distance(ew.decide(p, digits), test_y).mean().item()
    print(f"accuracy {(p.argmax(-1) == test_y).float().mean():.1%}, off by {off:.3f} digits on average")
    return off


if __name__ == "__main__":
    main()
