"""``earthwork demo``: what it says is what its answers are, and it is small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import earthwork as ew
from earthwork.cli.app import run
from earthwork_lab import demo
from earthwork_lab.demo.diamonds import GRADES, QUICK, read
from earthwork_lab.demo.story import difference, rarer_mistakes

PICTURES = ["intervals.png", "mistakes.png", "stones.png"]


@pytest.fixture(scope="module")
def graded() -> demo.Graded:
    return demo.run(seed=3, sizes=QUICK)


def test_writes_three_pictures_and_shows_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--quick", "--seed", "3", "--out", str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == PICTURES
    assert all(str(tmp_path / "new" / name) in said.replace("\n", "") for name in PICTURES)
    assert said.rstrip().endswith(demo.CODE.rstrip())
    assert len(demo.CODE.splitlines()) == 5


def test_numbers_are_those_of_the_answers(graded: demo.Graded) -> None:
    said = "\n".join(demo.tell(graded))
    for name, answers in {"most probable grade": graded.p.argmax(-1), "ew.decide": graded.answers}.items():
        off = (answers - graded.truth).abs()
        right, mean, far = re.findall(rf"^{re.escape(name)} +([\d.]+) % +([\d.]+) +(\d+)$", said, re.MULTILINE)[0]
        assert float(right) == pytest.approx(100 * (off == 0).double().mean().item(), abs=0.051)
        assert float(mean) == pytest.approx(off.double().mean().item(), abs=0.00051)
        assert int(far) == (off >= 3).sum()
    held = graded.intervals.gather(1, graded.truth[:, None]).double().mean().item()
    assert float(re.findall(r"held ([\d.]+) %", said)[0]) == pytest.approx(100 * held, abs=0.051)


def test_code_that_is_shown_makes_the_answers(graded: demo.Graded) -> None:
    names = {"ew": ew, "GRADES": GRADES, "p": graded.p}
    names |= {"p_held_out": graded.p, "labels_held_out": graded.truth}
    exec(demo.CODE, names)
    assert torch.equal(names["answers"], graded.answers)
    assert names["intervals"].shape == graded.intervals.shape


def test_parts_do_not_overlap_and_seed_changes_them() -> None:
    table = [x for part in read(0, (2000, 1000, 1000, 4000)) for x in part.rows]
    assert len({id(row) for row in table}) == 8000
    assert read(0, (5, 5))[0].rows == read(0, (5, 5))[0].rows != read(1, (5, 5))[0].rows


def test_rarer_mistakes_and_differences() -> None:
    p = torch.eye(8)[[7, 7, 0, 3]]
    graded = demo.Graded([], torch.tensor([1, 1, 0, 3]), p, torch.tensor([7, 2, 0, 3]), p > 0, p.argmax(-1), QUICK)
    assert rarer_mistakes(graded) == [((1, 7), 2, 1)]
    assert difference(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])) == (1.0, 0.0)


def test_needs_neither_lightning_nor_scipy(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("lightning", "pandas", "pyarrow", "scipy", "sklearn", "tensorboard", "torchmetrics")))
from earthwork.cli.app import run
code = run(["demo", "--quick", "--out", {str(tmp_path)!r}])
sys.exit(code or run(["train", "x.npz", "--space", "chain:3"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    needs = "error: earthwork train needs `lightning`: pip install 'earthwork-lab[train]'"
    assert done.stderr.splitlines()[-1] == needs
    assert sorted(path.name for path in tmp_path.iterdir()) == PICTURES


def test_interruption_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    assert run(["demo", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "error: interrupted"
