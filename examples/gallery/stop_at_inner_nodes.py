"""Deciding: a model that may say "one of these" instead of guessing (noisy digits, from scikit-learn)."""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import earthwork as ew
from common import DIRT, GOLD, GREY, network, save, train


def main() -> None:
    """From "always a digit" to "as vague as it likes": how often it is right, and how much it says."""
    images, labels = load_digits(return_X_y=True)
    noisy = torch.tensor(images / 16).float() + 0.38 * torch.randn(len(images), 64, generator=torch.manual_seed(0))
    x, test_x, y, test_y = map(torch.as_tensor, train_test_split(noisy, labels, test_size=0.5, random_state=0))
    tree = ew.trees.from_nested({
        "round": {"closed": ["0", "6", "8", "9"], "open": ["2", "3", "5"]},
        "straight": ["1", "4", "7"],
    })  # fmt: skip
    tree = ew.trees.restrict(tree, [str(digit) for digit in range(10)])
    torch.manual_seed(0)
    model = train(network(64, 10), nn.CrossEntropyLoss(label_smoothing=0.1), x, y, epochs=25)
    with torch.no_grad():
        p = model(test_x).softmax(-1)

    ancestors = torch.zeros(tree.num_nodes, 10, dtype=torch.bool)
    for label, node in enumerate(tree.bins.tolist()):
        while node >= 0:
            ancestors[node, label] = True
            node = int(tree.parents[node])
    leaves_below = ancestors.sum(-1)
    rows = []
    for vagueness in (0.0, 0.1, 0.2, 0.3, 0.45, 1.01):
        answer = ew.decide(p, tree, allow_inner=True, vagueness=vagueness)
        true, digit = ancestors[answer, test_y].float().mean(), (leaves_below[answer] == 1).float().mean()
        rows.append((vagueness, true.item(), digit.item()))

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.3), width_ratios=[1, 1.25])
    _, true_share, digit_share = zip(*rows, strict=True)
    left.plot(digit_share, true_share, "-o", color=DIRT)
    for vagueness, true, digit in rows:
        left.annotate(f"{min(vagueness, 1.0):g}", (digit, true), textcoords="offset points", xytext=(5, 4), fontsize=8)
    left.set(xlabel="share of answers that are one digit", ylabel="share of answers that are right")
    left.set_title("vagueness, from 0 to 1")
    answer = ew.decide(p, tree, allow_inner=True, vagueness=0.1)
    unsure = (leaves_below[answer] > 1).nonzero().squeeze(-1)[:5].tolist()
    right.axis("off")
    for place, i in enumerate(unsure):
        inset = right.inset_axes((place / 5, 0.45, 0.18, 0.5))
        inset.imshow(test_x[i].reshape(8, 8).numpy(), cmap="gray_r")
        inset.axis("off")
        bars = right.inset_axes((place / 5, 0.17, 0.18, 0.26))
        bars.bar(range(10), p[i].numpy(), color=[GOLD if d == test_y[i] else GREY for d in range(10)])
        bars.axis("off")
        text = (tree.names or ())[int(answer[i])]
        right.text(place / 5 + 0.09, 0.1, f"“{text}”\nit is a {test_y[i]}", ha="center", va="top", fontsize=9)
    right.set_title("answers that are a group")
    figure.tight_layout()
    save(figure, "stop_at_inner_nodes")
    print([tuple(round(v, 3) for v in row) for row in rows])


if __name__ == "__main__":
    main()
