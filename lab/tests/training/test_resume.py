from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from earthwork.cli.app import run
from earthwork_lab.training.recorder import checkpoints_in
from lab.tests.training.helpers import (
    SLOW,
    assert_same_run,
    child,
    command_in_child,
    run_in_child,
    tiny_options,
    write_arrays,
)

# EARTHWORK_KILLS=20 takes a few minutes.
KILLS = int(os.environ.get("EARTHWORK_KILLS", "5"))
RUN = ("0.5emd2+0.5ce", "seed-0")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run, its options, and how long it took."""
    folder = tmp_path_factory.mktemp("reference")
    data = write_arrays(folder / "data.npz")
    with child(run_in_child, tiny_options(data, folder / "warm-up", epochs=1), False, folder / "log") as process:
        process.join()  # the server has imported everything from here on
    start = time.monotonic()
    with child(run_in_child, tiny_options(data, folder / "run"), False, folder / "log") as process:
        process.join()
    assert process.exitcode == 0, (folder / "log").read_text()
    return folder / "run", data, time.monotonic() - start


def test_killed_at_random_moments(reference, tmp_path):
    uninterrupted, data, duration = reference
    moments = [random.SystemRandom().uniform(0, duration) for _ in range(KILLS)]
    kills, attempt = 0, 0
    while kills < KILLS:
        attempt += 1
        out, log = tmp_path / f"run-{attempt}", tmp_path / f"log-{attempt}"
        while True:
            resume = (out / "config.yaml").exists()
            with child(run_in_child, tiny_options(data, out), resume, log) as process:
                if kills < KILLS:
                    process.join(moments[kills])
                    if process.is_alive():
                        os.kill(process.pid, signal.SIGKILL)
                        kills += 1
                process.join()
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL, log.read_text()
        assert_same_run(uninterrupted.joinpath(*RUN), out.joinpath(*RUN))


@pytest.mark.parametrize("cut", [1, 2])
def test_goes_on_from_last_good_checkpoint(reference, tmp_path, cut):
    uninterrupted, data, _ = reference
    out, log = tmp_path / "run", tmp_path / "log"
    with child(run_in_child, tiny_options(data, out, epochs=3), False, log) as process:
        process.join()
    damaged = checkpoints_in(out.joinpath(*RUN, "checkpoints"))[:cut]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-100])
    with child(run_in_child, tiny_options(data, out), True, log) as process:
        process.join()
    assert process.exitcode == 0, log.read_text()
    assert all(f"skipped: {path}: truncated" in log.read_text() for path in damaged)
    assert ("resuming from" in log.read_text()) == (cut == 1)
    assert_same_run(uninterrupted.joinpath(*RUN), out.joinpath(*RUN))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_when_asked_to_says_how_to_go_on(reference, tmp_path, number):
    uninterrupted, data, _ = reference
    out, log = tmp_path / "run", tmp_path / "log"
    with child(command_in_child, ["train", str(data), *_arguments(tiny_options(data, out))], log) as process:
        while not out.joinpath(*RUN, "metrics.csv").exists() and process.is_alive():
            time.sleep(0.001)
        os.kill(process.pid, number)
        process.join()
    assert process.exitcode == 130, log.read_text()
    assert f"stopped and saved; to resume: earthwork train --resume {out} --trust" in log.read_text()
    with child(command_in_child, ["train", "--resume", str(out), "--trust"], log) as process:
        process.join()
    assert process.exitcode == 0, log.read_text()
    assert "resuming from" in log.read_text()
    assert_same_run(uninterrupted.joinpath(*RUN), out.joinpath(*RUN))


def test_second_ctrl_c_stops_at_once(reference, tmp_path):
    _, data, _ = reference
    out, log = tmp_path / "run", tmp_path / "log"
    with child(
        command_in_child, ["train", str(data), *_arguments(tiny_options(data, out, model=SLOW))], log
    ) as process:
        for said in ("a slow batch", "stopping after this batch"):
            while said not in (log.read_text() if log.exists() else "") and process.is_alive():
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGINT)
        process.join()
    assert process.exitcode == 130, log.read_text()
    assert f"stopped; to resume from the last checkpoint: earthwork train --resume {out} --trust" in log.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
@pytest.mark.parametrize("room", [0, 10_000])
def test_full_disk_one_error_and_loses_nothing(reference, tmp_path, room):
    """By a limit on the size of files, which fails as a full disk does."""
    uninterrupted, data, _ = reference
    out, log = tmp_path / "run", tmp_path / "log"
    with child(run_in_child, tiny_options(data, out, epochs=3), False, log) as process:
        process.join()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with child(command_with_limit, room, ["train", "--resume", str(out), "--trust", "--epochs=8"], log) as process:
        process.join()
    lines = log.read_text().splitlines()
    assert process.exitcode == 2, log.read_text()
    assert "error: " in lines[-1]
    assert "File too large" in lines[-1]
    assert not [line for line in lines if "Traceback" in line]
    kept = [path for path in before if path.suffix in (".ckpt", ".pt")]
    assert kept
    assert all(path.read_bytes() == before[path] for path in kept), "nothing was overwritten"
    assert not list(out.rglob("*.part")), "no drafts are left"
    with child(run_in_child, tiny_options(data, out), True, log) as process:
        process.join()
    assert process.exitcode == 0, log.read_text()
    assert_same_run(uninterrupted.joinpath(*RUN), out.joinpath(*RUN))


def command_with_limit(size, arguments, log):
    import resource

    log.touch()
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(size, log.stat().st_size + 5_000), resource.RLIM_INFINITY))
    command_in_child(arguments, log)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that even root cannot write to")
def test_folder_that_cannot_be_written_to(reference, capsys):
    _, data, _ = reference
    options = tiny_options(data, "/proc/earthwork", epochs=1)
    assert run(["train", str(data), *_arguments(options)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("error: /proc/earthwork")


def test_only_one_process_trains_in_folder(reference, tmp_path, capsys):
    fcntl = pytest.importorskip("fcntl")
    uninterrupted, _, _ = reference
    descriptor = os.open(uninterrupted, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert run(["train", "--resume", str(uninterrupted), "--trust"]) == 2
    finally:
        os.close(descriptor)
    assert capsys.readouterr().err == f"error: --out {uninterrupted}: another process is training in this folder\n"
    assert run(["train", "--resume", str(uninterrupted), "--trust"]) == 0


def _arguments(options):
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if name != "data"]
