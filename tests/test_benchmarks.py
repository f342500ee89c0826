"""The history of benchmark runs: what is kept, and what counts as slower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import history, sharded
from benchmarks.timing import noise

import earthwork as ew


def run_of(commit: str, ratio: float, speed_up: float = 6.0, spread: float = 0.01, cores: int = 2) -> history.Entry:
    return {
        "date": "2026-01-01 00:00",
        "commit": commit,
        "quick": False,
        "machine": {"processor": "test", "cores": cores, "threads": 2, "type": "float32", "load before": 0.1},
        "figures": {
            "loss / cross entropy": {"figure": ratio, "noise": spread, "at_least": False},
            "matrix / ours": {"figure": speed_up, "noise": spread, "at_least": True},
        },
    }


@pytest.mark.parametrize(
    ("after", "verdicts"),
    [
        (run_of("b", 1.05), ["same", "same"]),
        (run_of("b", 1.2), ["slower", "same"]),
        (run_of("b", 0.8), ["faster", "same"]),
        (run_of("b", 1.0, speed_up=4.0), ["same", "slower"]),
        (run_of("b", 1.0, speed_up=8.0), ["same", "faster"]),
        (run_of("b", 1.2, spread=0.1), ["same", "same"]),
        (run_of("b", 1.5, spread=0.1), ["slower", "same"]),
        (run_of("b", 1.3, spread=0.0), ["same", "same"]),
        (run_of("b", 1.4, spread=0.0), ["slower", "same"]),
    ],
)
def test_change_counts_beyond_noise(after, verdicts):
    assert [change.verdict for change in history.compare(run_of("a", 1.0), after)] == verdicts


def test_noise_is_variation_of_parts_of_run():
    assert noise([1.0] * 50) == 0
    assert noise([1.0, 1.0]) == 0
    assert noise([1.0] * 10 + [2.0] * 10 + [1.0] * 30) == pytest.approx(0.2**0.5 / 1.2)


def test_runs_are_appended_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "history.json"
    for one in (run_of("aaa", 1.0), run_of("other", 1.0, cores=64), run_of("bbb", 1.3)):
        history.append(one, path)
    assert history.main(["--history", str(path)]) == 1
    said = capsys.readouterr().out
    assert "aaa (2026-01-01 00:00) → bbb" in said
    assert "1 of 2 figures slower beyond noise" in said
    assert "SLOWER" in said
    assert history.main(["bbb", "aaa", "--history", str(path)]) == 0
    assert "nothing slower beyond noise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["aaa", "zzz"], "zzz: no run of this commit; there are aaa, other"),
        (["aaa", "other"], "aaa and other were run on different machines"),
        ([], "expected two runs on the same machine"),
        (["aaa"], "expected no commits or two"),
    ],
)
def test_what_cannot_be_compared_is_error(tmp_path, capsys, names, message):
    path = tmp_path / "history.json"
    for one in (run_of("aaa", 1.0), run_of("other", 1.0, cores=64)):
        history.append(one, path)
    with pytest.raises(SystemExit):
        history.main([*names, "--history", str(path)])
    assert message in capsys.readouterr().err


def test_history_of_repository_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    entries = history.read()
    assert entries
    assert json.loads(history.HISTORY.read_text(encoding="utf-8"))[-1]["figures"]
    history.draw([*entries, {**entries[-1], "commit": "next"}], tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 10_000


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 16])
def test_shared_nodes_of_decimal_tree(ranks: int) -> None:
    tree = ew.Tree(**sharded.decimal_tree(3))
    assert (tree.parents[1:] < torch.arange(1, tree.num_nodes)).all()
    assert torch.equal(torch.tensor(tree._order), torch.arange(tree.num_nodes))
    assert (tree.num_bins, tree.depth) == (1000, 3)
    assert sharded.decimal_shared(3, ranks) == len(tree.sharding(ranks).shared)
