from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from normplace.lab.train.throughput import ThroughputMeter, flops_per_token, measure_peak
from normplace.models.transformer import AttentionConfig, HeadConfig, Transformer, TransformerConfig

SHAPES = {"attention": AttentionConfig(heads=4, key_value_heads=2)}


@pytest.mark.parametrize("tied", [True, False])
def test_the_formula_counts_what_a_step_computes(tied):
    model = Transformer(TransformerConfig(50, 32, 3, "peri", head=HeadConfig(tied=tied), **SHAPES))
    ids = torch.randint(50, (2, 24), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids)
    # A backward pass has two products for each of the forward's.
    assert 3 * counter.get_total_flops() / ids.numel() == flops_per_token(model, 24)


def test_attention_flops_stop_at_the_window():
    shape = TransformerConfig(50, 32, 2, "peri", attention=AttentionConfig(heads=4, windows=(8, None)))
    model = Transformer(shape, device="meta")
    assert flops_per_token(model, 24) - flops_per_token(model, 8) == 12 * 32 * (24 - 8)


def test_flops_of_other_networks_count_their_weights():
    assert flops_per_token(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()), 7) == 6 * 15


def test_the_meter_uses_the_median_step(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 103.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    meter = ThroughputMeter(tokens=100, flops=4.0, peak=1000.0)
    assert meter.tokens_per_second is None
    meter.start_step()
    assert [meter.end_step() for _ in range(3)] == [1.0, 2.0, 100.0]
    assert meter.tokens_per_second == 50.0
    assert meter.mfu == 0.2


def test_the_peak_is_measured():
    assert 1e8 < measure_peak(torch.device("cpu"), "float32") < 1e14
