from __future__ import annotations

import errno
import json
import math
import os
import sys
import types

import pytest

from normplace.errors import UsageError
from normplace.lab.train import log as logs
from normplace.lab.train.log import Log, read_log


def test_lines_are_read_as_they_were_written(tmp_path):
    log = Log(tmp_path / "run")
    log.write("step", 1, loss=0.1 + 0.2, gradient=math.inf)
    log.write("checkpoint", 1)
    log.sync()
    log.close()
    first, second = read_log(tmp_path / "run")
    assert first == {"event": "step", "step": 1, "loss": 0.1 + 0.2, "gradient": "inf"}  # to the last bit
    assert second == {"event": "checkpoint", "step": 1}


def test_a_partial_line_is_removed_before_appending(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"event":"step","step":1}\n{"event":"st')
    assert len(read_log(tmp_path)) == 1
    log = Log(tmp_path)
    log.write("step", 2)
    log.close()
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2]


def test_a_second_run_in_the_same_folder_is_an_error(tmp_path):
    log = Log(tmp_path)
    with pytest.raises(UsageError, match="another run is writing"):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("write", [full_disk, lambda file, data: len(data) - 1])
def test_a_full_disk_is_an_error(tmp_path, monkeypatch, write):
    log = Log(tmp_path)
    monkeypatch.setattr("os.write", write)
    with pytest.raises(UsageError, match="No space left on device"):
        log.write("step", 1)


def test_an_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        Log(tmp_path / "file" / "run")


def installed(monkeypatch, name, **members):
    module = types.ModuleType(name)
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_tensorboard_and_wandb_get_the_numbers(tmp_path, monkeypatch):
    got = []

    class Writer:
        def __init__(self, folder):
            got.append(folder)

        def add_text(self, name, text):
            got.append((name, json.loads(text)))

        def add_scalar(self, name, value, step):
            got.append((name, value, step))

        def close(self):
            got.append("closed")

    class Run:
        def log(self, values, step):
            got.append((values, step))

        def finish(self):
            got.append("finished")

    installed(monkeypatch, "tensorboard")
    installed(monkeypatch, "torch.utils.tensorboard", SummaryWriter=Writer)
    installed(monkeypatch, "wandb", init=lambda **options: got.append(options["config"]) or Run())
    log = Log(tmp_path, ["tensorboard", "wandb"], {"steps": 3})
    log.write("step", 7, loss=0.5, gradient_norm=math.nan, reason="words")
    log.close()
    folder = str(tmp_path / "tensorboard")
    begun = [folder, ("config", {"steps": 3}), {"steps": 3}]
    assert got == [*begun, ("loss", 0.5, 7), ({"loss": 0.5}, 7), "closed", "finished"]


def test_mlflow_gets_the_numbers_under_names_that_it_accepts(tmp_path, monkeypatch):
    got = []
    members = {
        "start_run": lambda run_name: got.append(run_name),
        "log_params": got.append,
        "log_metrics": lambda values, step: got.append((values, step)),
        "end_run": lambda: got.append("ended"),
    }
    installed(monkeypatch, "mlflow", **members)
    log = Log(tmp_path / "run", ["mlflow"], {"steps": 3})
    log.write("step", 7, scalars={"final/degree^-1/report": 0.5})
    log.close()
    assert got == ["run", {"steps": "3"}, ({"final/degree_-1/report": 0.5}, 7), "ended"]


def test_one_tracker_needs_no_list_and_lists_keep_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setitem(logs.TRACKERS, "tensorboard", lambda out, config: types.SimpleNamespace(
        write=lambda step, values: got.append((step, values)), close=lambda: None))  # fmt: skip
    got = []
    log = Log(tmp_path, "tensorboard")
    log.write("signals", 3, scalars={"peak/1": 2.0, "peak/2": math.inf}, peak=[2.0, math.inf, None], loss=1.0)
    log.close()
    assert got == [(3, {"peak/1": 2.0})]
    assert read_log(str(tmp_path)) == [{"event": "signals", "step": 3, "peak": [2.0, "inf", None], "loss": 1.0}]


def test_an_unknown_or_missing_tracker_is_an_error(monkeypatch):
    with pytest.raises(UsageError, match="did you mean 'tensorboard'"):
        logs.check_trackers(["tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install wandb"):
        logs.check_trackers(["wandb"])


@pytest.mark.parametrize("line", [b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_the_error_names_a_damaged_line(tmp_path, line):
    (tmp_path / "log.jsonl").write_bytes(b'{"event":"step","step":1}\n' + line + b'\n{"event":"st')
    with pytest.raises(UsageError, match="line 2 of") as caught:
        logs.read_log(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot read"):
        logs.read_log(tmp_path / "absent")
