"""Plain PyTorch: the progression of diabetes in five grades, with EMD² and cross entropy mixed one to one."""

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from torch import nn

import earthwork as ew


def main(epochs: int = 30) -> float:
    """Train a small network; returns its mean absolute error in grades."""
    torch.manual_seed(0)
    features, progression = load_diabetes(return_X_y=True)
    grades = np.digitize(progression, np.quantile(progression, [0.2, 0.4, 0.6, 0.8]))
    train_x, test_x, train_y, test_y = map(torch.as_tensor, train_test_split(features, grades, random_state=0))
    train_x, test_x = 20 * train_x.float(), 20 * test_x.float()

    space = ew.Chain(5)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5))
    loss_function = ew.MixedLoss((0.5, ew.EMDLoss(space)), (0.5, nn.CrossEntropyLoss()))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for _ in range(epochs):
        for batch in torch.randperm(len(train_x)).split(64):
            optimizer.zero_grad()
            loss = loss_function(model(train_x[batch]), train_y[batch])
            loss.backward()
            optimizer.step()

    with torch.no_grad():
        p = model(test_x).softmax(-1)
    error = space.distance(ew.decide(p, space), test_y).mean().item()
    print(f"accuracy {(p.argmax(-1) == test_y).float().mean():.1%}, mean absolute error {error:.2f} grades")
    return error


if __name__ == "__main__":
    main()
