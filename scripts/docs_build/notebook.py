"""The tutorial as a notebook: ``python scripts/docs_build/notebook.py`` runs it and updates the page.

The page ``docs/tutorial/index.md`` is the source. Its text and Python blocks become the cells of ``first_loss.ipynb``.
The notebook is executed in the folder of the page, where it writes the pictures, and its printed output is copied back
to the page, into the blocks that start with ```` ```text title="output" ````.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "index.md"
NOTEBOOK = PAGE.with_name("first_loss.ipynb")
_CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_OUTPUT = re.compile(r'^```text(?P<title> title="output")?\n(?P<text>.*?)^```\n', re.DOTALL | re.MULTILINE)
_FIGURE = re.compile(r"^!\[.*\n", re.MULTILINE)
_ITSELF = re.compile(r" The same steps are in a\s\[notebook\]\(first_loss\.ipynb\)\.")


def cells(page: str) -> list[tuple[str, str]]:
    """The kind (markdown or code) and the source of every cell: the page without outputs, figures and its own link.

    The first cell makes a notebook show figures, and is not part of the page.
    """
    text = _ITSELF.sub("", _FIGURE.sub("", _OUTPUT.sub("", page)))
    found = [("code", "%matplotlib inline")]
    for place, part in enumerate(_CODE.split(text)):
        kind, blank_lines = ("code", "\n\n\n") if place % 2 else ("markdown", "\n\n")
        source = re.sub(r"\n{3,}", blank_lines, part).strip()
        if source:
            found.append((kind, source))
    return found


def notebook(page: str) -> Any:
    """The notebook, without outputs."""
    from nbformat import v4

    made = v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    for place, (kind, source) in enumerate(cells(page)):
        cell = v4.new_code_cell(source) if kind == "code" else v4.new_markdown_cell(source)
        cell.id = f"cell-{place}"  # the default is random
        made.cells.append(cell)
    return made


def execute(made: Any, folder: Path) -> Any:
    """Run all cells in a folder; an error in a cell is raised."""
    from nbclient import NotebookClient

    NotebookClient(made, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in made.cells:
        # When a cell was run is different each time.
        cell.metadata.pop("execution", None)
    return made


def printed(made: Any) -> list[str]:
    """What each code cell printed, without the first one."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in made.cells[1:]
        if cell.cell_type == "code"
    ]


def with_outputs(page: str, outputs: list[str]) -> str:
    """The page with the output of each Python block in the block of text after it, where there is one."""
    parts = _CODE.split(page)
    for place, output in enumerate(outputs):
        after = parts[2 * place + 2]
        found = _OUTPUT.match(after.lstrip("\n"))
        if found and found["title"]:
            block = f'```text title="output"\n{output.rstrip()}\n```\n'
            parts[2 * place + 2] = "\n" + block + after.lstrip("\n")[found.end() :]
    code = [f"```python\n{part}```\n" if place % 2 else part for place, part in enumerate(parts)]
    return "".join(code)


def main() -> None:
    """Run the notebook, and update it, its pictures and the page."""
    import nbformat

    page = PAGE.read_text(encoding="utf-8")
    made = execute(notebook(page), PAGE.parent)
    nbformat.write(made, NOTEBOOK)
    PAGE.write_text(with_outputs(page, printed(made)), encoding="utf-8")


if __name__ == "__main__":
    main()
