"""A tree as one HTML file that folds and searches, for trees beyond a screen."""

from __future__ import annotations

import html
from importlib.resources import files
from string import Template

from earthwork.files import to_json
from earthwork.spaces import Tree
from earthwork.text import printable
from earthwork.trees.assemble import check_tree


def tree_page(tree: Tree, title: str | None = None) -> str:
    """Return the text of an HTML file that shows a tree: nodes fold, names can be searched for. It loads nothing.

    Args:
        tree: The tree. A hundred thousand nodes are no problem: what is folded is not drawn.
        title: What it is called; by default how many nodes and classes it has.

    Example:
        >>> import earthwork as ew
        >>> page = ew.plot.tree_page(ew.trees.cifar10())
        >>> "automobile" in page
        True
    """
    check_tree(tree)
    title = str(tree) if title is None else title
    content = {
        "title": title,
        "names": list(map(printable, tree.names) if tree.names else map(str, range(tree.num_nodes))),
        "parents": tree.parents.tolist(),
        "bins": tree.bins.tolist(),
        "costs": None if (tree._costs == 1).all() else tree._node_costs().tolist(),
    }
    # "</script>" and "<!--" in a name must not end or change the script element.
    text = to_json(content).replace("<", "\\u003c")
    page = files("earthwork.plot").joinpath("data", "tree.html").read_text(encoding="utf-8")
    before, after = page.split("$tree")
    return Template(before).substitute(title=html.escape(title)) + text + after
