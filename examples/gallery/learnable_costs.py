"""Learnable edge costs: how long must the branches be so that the tree tells how alike digits look?"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import softplus

import earthwork as ew
from common import DIRT, GOLD, GREY, INK, save


def main() -> None:
    """Fit the costs of a tree to the distances between the mean pictures of the digits."""
    images, labels = load_digits(return_X_y=True)
    means = torch.stack([torch.tensor(images[labels == digit].mean(0)) for digit in range(10)])
    wanted = torch.cdist(means, means)
    wanted = wanted / wanted.max()
    tree = ew.trees.reweight(ew.trees.from_embeddings(means, [str(d) for d in range(10)]), "unit").normalized()

    classes = torch.eye(tree.num_bins, dtype=torch.float64)
    raw = torch.full((tree.num_edges,), -2.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([raw], max_iter=200, line_search_fn="strong_wolfe")

    def misfit() -> torch.Tensor:
        optimizer.zero_grad()
        distances = ew.emd(classes[:, None], classes, tree, costs=softplus(raw))
        loss = (distances - wanted).square().mean()
        loss.backward()
        return loss

    optimizer.step(misfit)
    learned = tree.with_costs(softplus(raw).detach())

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.6), width_ratios=[1.5, 1])
    draw(left, learned)
    left.set_title("fitted edge costs")
    pairs = torch.triu_indices(10, 10, 1)
    for space, colour, name in ((tree, GREY, "all edges equal"), (learned, DIRT, "learned")):
        fitted = space.distances()[pairs[0], pairs[1]]
        error = (fitted - wanted[pairs[0], pairs[1]]).square().mean().sqrt()
        right.scatter(wanted[pairs[0], pairs[1]], fitted, s=14, color=colour, label=f"{name}: error {error:.2f}")
    right.plot([0.2, 1], [0.2, 1], color=INK, lw=0.8)
    right.set(xlabel="distance between the mean images", ylabel="distance in the tree")
    right.legend(loc="lower left", bbox_to_anchor=(0, 1))
    figure.tight_layout()
    save(figure, "learnable_costs")
    print(learned)


def draw(axis: plt.Axes, tree: ew.Tree) -> None:
    """The tree from left to right, each branch as long as it costs."""
    depth = tree.node_distance(torch.arange(tree.num_nodes), tree.root).tolist()
    parents = tree.parents.tolist()
    order = tree._order.argsort().tolist()
    height: dict[int, float] = {}
    rows = iter(range(tree.num_bins))
    for node in order:
        if node in tree.bins:
            height[node] = float(next(rows))
    for node in reversed(order):
        below = [height[child] for child, up in enumerate(parents) if up == node]
        if below:
            height[node] = sum(below) / len(below)
    for node, up in enumerate(parents):
        if up >= 0:
            axis.plot([depth[up], depth[up]], [height[up], height[node]], color=GREY, lw=1.5, zorder=1)
            axis.plot([depth[up], depth[node]], [height[node]] * 2, color=DIRT, lw=2.5, zorder=2)
    for label, node in enumerate(tree.bins.tolist()):
        axis.scatter(depth[node], height[node], color=GOLD, s=24, zorder=3)
        axis.text(depth[node] + 0.012, height[node], str(label), va="center")
    axis.set(yticks=[], xlabel="cost from the root")
    axis.spines["left"].set_visible(False)


if __name__ == "__main__":
    main()
