"""A hierarchy from the confusions of a first model (handwritten digits, from scikit-learn)."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.cluster.hierarchy import dendrogram, linkage
from scipy.spatial.distance import squareform
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import earthwork as ew
from common import DIRT, network, save, train


def main() -> None:
    """Train on half of the noisy digits, count confusions on the other half, and make a tree of them."""
    images, labels = load_digits(return_X_y=True)
    noisy = torch.tensor(images / 16).float() + 0.4 * torch.randn(len(images), 64, generator=torch.manual_seed(0))
    x, test_x, y, test_y = map(torch.as_tensor, train_test_split(noisy, labels, test_size=0.5, random_state=0))
    model = train(network(64, 10), nn.CrossEntropyLoss(), x, y, epochs=30)
    with torch.no_grad():
        p = model(test_x).softmax(-1)
    # The whole distribution says more about what is alike than the answers alone.
    confusion = torch.zeros(10, 10).index_add_(0, test_y, p)
    names = [str(digit) for digit in range(10)]
    tree = ew.trees.from_confusion(confusion, names)

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.2), width_ratios=[1.35, 1, 1])
    distances = tree.distances().numpy()
    drawn = dendrogram(
        linkage(squareform(distances, checks=False), "average"),
        ax=left,
        labels=names,
        color_threshold=0,
        above_threshold_color=DIRT,
    )
    left.set(title="a tree of the confusions", yticks=[], ylim=(distances[distances > 0].min() * 0.985, None))
    left.spines["left"].set_visible(False)
    shares = (confusion / confusion.sum(-1, keepdim=True)).numpy()
    np.fill_diagonal(shares, np.nan)
    for axis, order, title in (
        (middle, list(range(10)), "confusions, 0 to 9"),
        (right, [int(name) for name in drawn["ivl"]], "in the order of the tree"),
    ):
        axis.imshow(shares[np.ix_(order, order)], cmap="YlOrBr")
        axis.set(title=title, xticks=range(10), yticks=range(10), xticklabels=order, yticklabels=order)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    save(figure, "hierarchy_from_confusion")
    space = ew.trees.reweight(tree, "unit")
    for way, answer in (("argmax", p.argmax(-1)), ("decide", ew.decide(p, space))):
        print(way, round(space.distance(answer, test_y).mean().item(), 3))


if __name__ == "__main__":
    main()
