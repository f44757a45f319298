"""The estimate of several GPUs: its bytes, what computation hides, and the script that prints it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
import sys
from pathlib import Path

import pytest
from torch import nn

from normplace.errors import UsageError
from normplace.lab.train.throughput import flops_per_token
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import estimate_scaling
from papers.scaling import estimate_step, step_traffic
from papers.scaling_tables import Plan, measured

MODEL = Transformer(TransformerConfig(256, 64, 4, "peri", attention=AttentionConfig(heads=4)), device="meta")
FAST = 1e30
"""A bandwidth at which nothing has to be hidden."""


def estimate(processes: int = 2, accumulate: int = 1, bandwidth: float = FAST):
    return estimate_step(
        MODEL,
        context=32,
        batch=8,
        accumulate=accumulate,
        processes=processes,
        flops_per_second=1e12,
        bandwidth=bandwidth,
    )


def test_a_process_receives_the_weights_of_the_others():
    weights = sum(parameter.numel() for parameter in MODEL.parameters())
    embedding = 256 * 64 + 64  # with the final norm
    traffic = step_traffic(MODEL, processes=4, accumulate=3)
    assert traffic.reduced == 4 * weights * 3 / 4
    assert traffic.gathered == 3 * 4 * (2 * (weights - embedding) + embedding) * 3 / 4
    assert step_traffic(MODEL, processes=1).gathered == 0


def test_shards_are_padded_to_equal_sizes():
    assert step_traffic(nn.Linear(3, 31, bias=False), processes=2).reduced == 4 * 32 * 3 / 2


def test_one_process_takes_the_measured_time():
    flops = flops_per_token(MODEL, 32)
    one = estimate(processes=1)
    assert one.exposed == one.communication == 0
    assert one.tokens_per_second == pytest.approx(1e12 / flops)
    assert one.days(one.tokens_per_second * 86_400) == pytest.approx(1)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_communication_is_hidden_down_to_the_bandwidth_that_hides_it(accumulate):
    limit = estimate(accumulate=accumulate).hiding_bandwidth
    for bandwidth, is_hidden in ((1.001 * limit, True), (0.9 * limit, False)):
        result = estimate(accumulate=accumulate, bandwidth=bandwidth)
        ends = (accumulate + 1) * (result.traffic.root + result.traffic.first) / bandwidth
        assert (result.exposed == pytest.approx(ends)) is is_hidden
        assert result.exposed >= ends


def test_a_slow_network_leaves_all_communication_exposed():
    result = estimate(bandwidth=1.0)
    most = result.communication + 2 * result.traffic.first  # which the last block does not hide
    assert result.communication - result.compute < result.exposed < most


def test_two_fast_processes_are_twice_as_fast_and_cost_the_same():
    one, two = estimate(processes=1), estimate(processes=2)
    assert two.tokens_per_second == pytest.approx(2 * one.tokens_per_second)
    assert two.gpu_hours(1e9) == pytest.approx(one.gpu_hours(1e9))


def test_a_batch_that_cannot_be_split_is_an_error():
    with pytest.raises(UsageError, match="make it a multiple of 6"):
        estimate(processes=3, accumulate=2)


def test_a_placement_whose_blocks_are_gathered_more_often_is_an_error():
    with pytest.raises(UsageError, match="the blocks of siamese are gathered more often"):
        Plan(placement="siamese", dim=64, depth=2).estimate(2, 1e12)


def test_the_throughputs_are_those_of_the_committed_records():
    slow, fast = measured()
    record = json.loads((Path(__file__).parents[1] / "benchmarks" / "results" / "peri_step-cuda.json").read_text())
    row = next(row for row in record["step"] if row["tokens_per_s"] == fast.tokens_per_second)
    assert row["placement"] == "peri"
    assert fast.flops_per_second / fast.peak == pytest.approx(row["mfu"])
    assert 0.3 < slow.flops_per_second / slow.peak < row["mfu"]


def test_the_command_has_the_shape_of_the_plan():
    plan = Plan(dim=32, depth=2, heads=2, batch=64, sequences=8, tokens=1e6)
    words = shlex.split(plan.command(4))
    options = dict(itertools.pairwise(words))
    assert words[:3] == ["torchrun", "--nproc-per-node", "4"]
    assert (options["--dim"], options["--depth"], options["--accumulate"]) == ("32", "2", "2")
    assert int(options["--steps"]) * 64 * 1024 >= 1e6
    assert plan.command(1).startswith("normplace train ")


def test_the_script_prints_the_estimate_of_a_measured_run(tmp_path, capsys):
    (tmp_path / "result.json").write_text(json.dumps({"mfu": 0.5, "peak_tflops": 800.0}))
    words = ["--run", str(tmp_path), "--gpus", "1", "2", "--dim", "64", "--heads", "2", "--bandwidth", "50"]
    assert estimate_scaling.main(words) == 0
    out = capsys.readouterr().out
    assert "400 TFLOP/s" in out
    assert "Assumed bandwidth: 50 GB/s" in out
    assert out.count("normplace train ") == 2
    model = dataclasses.replace(Plan(), dim=64, heads=2).model()
    days = 30e9 * flops_per_token(model, 1024) / 400e12 / 86_400
    assert f"| {days:.2f} |" in out


def test_the_script_needs_a_run_with_a_throughput(tmp_path, capsys):
    assert estimate_scaling.main(["--run", str(tmp_path)]) == 2
    assert "give the folder of a run of normplace train" in capsys.readouterr().err
