"""Two processes match the numbers of one, and each can resume a run of the other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from scripts.papers.scaling import step_traffic
from tests.lab.train.processes import CASES, COMPILED, COUNTED, DTYPES, SIGNALS
from tests.lab.train.training_cases import ALONE, corpus, network, train_config

from normplace.errors import UsageError
from normplace.lab.train.distributed import join_process_group
from normplace.lab.train.log import read_log
from normplace.lab.train.loop import fit

ROOT = Path(__file__).parents[3]


def losses(out):
    return {line["step"]: line["loss"] for line in read_log(out) if line["event"] == "step"}


def rewind(out):
    """Make the previous checkpoint the newest, and remove the log."""
    (out / "checkpoints" / "latest").write_text("step-00000004\n")
    shutil.rmtree(out / "checkpoints" / "step-00000008")
    (out / "log.jsonl").unlink()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder in which two processes trained every case."""
    out = tmp_path_factory.mktemp("runs")
    fit(network(), corpus(), train_config(), out / "alone", ALONE)
    rewind(out / "alone")
    shutil.copytree(out / "alone", out / "full")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.lab.train.processes"]
    done = subprocess.run(
        [sys.executable, *words, str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.parametrize("name", CASES)
def test_two_processes_match_the_losses_and_weights_of_one(runs, tmp_path, name):
    placement, changes = CASES[name]
    # In float64 the losses agree to 1e-12; in float32 rounding errors grow with the steps.
    tolerance = 1e-12 if name in DTYPES else 1e-6
    model = network(placement).to(DTYPES.get(name))
    fit(model, corpus(), train_config(**changes), tmp_path, ALONE)
    together, alone = losses(runs / name), losses(tmp_path)
    assert len(alone) == changes.get("steps", 8)
    assert together == pytest.approx(alone, abs=tolerance, rel=0)
    held_out_losses = [
        [line["held_out_loss"] for line in read_log(out) if line["event"] == "held-out"]
        for out in (runs / name, tmp_path)
    ]
    assert held_out_losses[0] == pytest.approx(held_out_losses[1], abs=tolerance, rel=0)
    weights = torch.load(runs / name / "weights.pt", weights_only=True)
    assert weights.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(weights[key], value, atol=100 * tolerance, rtol=0)


@pytest.mark.parametrize("name", ["sharded", "copied"])
def test_two_processes_measure_the_signals_of_one_and_change_no_bit(runs, tmp_path, name):
    fit(network(), corpus(), train_config(), tmp_path, ALONE, signals=SIGNALS)
    together, alone = (
        [line for line in read_log(out) if line["event"] == "signals"] for out in (runs / f"{name}-measured", tmp_path)
    )
    assert [line["step"] for line in together] == [0, 4, 8]
    for ours, expected in zip(together, alone, strict=True):
        for key in ("variance", "peak", "fp16_headroom", "gradient"):
            both = [[value for value in line[key] if value is not None] for line in (ours, expected)]
            assert both[0] == pytest.approx(both[1], rel=1e-4)  # the weights agree to rounding
        assert ("effective_lr" in ours) == (name == "copied")  # the optimizer's state is sharded
    assert losses(runs / f"{name}-measured") == losses(runs / name)
    plain, measured = (torch.load(runs / run / "weights.pt") for run in (name, f"{name}-measured"))
    assert all(plain[key].equal(measured[key]) for key in plain)


@pytest.mark.parametrize("placement", COUNTED)
def test_two_processes_receive_the_bytes_of_the_formula(runs, placement):
    gathered, reduced = json.loads((runs / "collectives.json").read_text())[placement]
    traffic = step_traffic(network(placement), processes=2, accumulate=COUNTED[placement])
    assert (traffic.gathered, traffic.reduced) == (gathered / 2, reduced / 2)  # half of it is the process's own shard


@pytest.mark.parametrize("placement", COMPILED)
def test_each_kind_of_sharded_block_or_branch_is_one_compiled_graph(runs, placement):
    assert json.loads((runs / "graphs.json").read_text())[placement] == COMPILED[placement]


def test_each_of_two_processes_writes_half(runs):
    sizes = [
        {key: len(value) for key, value in load_file(path).items() if key.startswith("optimizer/exp_avg/")}
        for path in sorted((runs / "sharded" / "checkpoints" / "step-00000008").glob("*.safetensors"))
    ]
    assert len(sizes) == 2
    whole = {f"optimizer/exp_avg/{name}": len(value) for name, value in network().named_parameters()}
    assert {key: sizes[0][key] + sizes[1][key] for key in sizes[0]} == whole
    assert sizes[0]["optimizer/exp_avg/embed.weight"] == 16  # of 31


@pytest.mark.parametrize("name", ["sharded", "copied"])
def test_one_process_resumes_a_run_of_two(runs, tmp_path, name):
    shutil.copytree(runs / name, tmp_path / "run")
    rewind(tmp_path / "run")
    result = fit(network(), corpus(), train_config(), tmp_path / "run", ALONE)
    assert result.resumed_from == 4
    expected = {step: loss for step, loss in losses(runs / name).items() if step > 4}
    assert losses(tmp_path / "run") == pytest.approx(expected, abs=1e-6, rel=0)


def test_two_processes_resume_a_run_of_one(runs, tmp_path):
    fit(network(), corpus(), train_config(), tmp_path, ALONE)
    expected = {step: loss for step, loss in losses(tmp_path).items() if step > 4}
    assert losses(runs / "alone") == pytest.approx(expected, abs=1e-6, rel=0)
    assert {"event": "resume", "step": 4, "processes": 2, "before": 1} in read_log(runs / "alone")


def test_a_full_disk_of_one_process_is_an_error_in_both(runs):
    messages = [(runs / f"full-{rank}.txt").read_text() for rank in range(2)]
    assert messages[0] == messages[1]
    assert "cannot write the checkpoint of step 8" in messages[0]
    assert "No space left on device): step-00000004 is intact" in messages[0]
    assert sorted(path.name for path in (runs / "full" / "checkpoints").iterdir()) == ["latest", "step-00000004"]
    assert fit(network(), corpus(), train_config(), runs / "full", ALONE).resumed_from == 4


def test_a_damaged_file_of_one_process_is_an_error_in_both(runs):
    messages = [(runs / f"damaged-{rank}.txt").read_text() for rank in range(2)]
    assert messages[0] == messages[1]
    assert "step-00000008 is damaged (process-1.safetensors has SHA-256 " in messages[0]
    assert "step-00000004 is intact" in messages[0]


def test_more_processes_than_gpus_are_an_error(monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with (
        pytest.raises(UsageError, match="2 processes need as many GPUs, but this machine has 1"),
        join_process_group("cuda"),
    ):
        pass


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_process_group("cpu") as group:
        assert (group.rank, group.size, group.is_distributed, group.is_first) == (0, 1, False, True)
        assert group.all_gather("word") == ["word"]
