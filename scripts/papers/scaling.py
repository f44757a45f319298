"""An estimate of training on several GPUs from the throughput of one, and the bytes that FSDP2 sends.

The processes of :func:`normplace.lab.train.distributed.distribute` hold float32 shards. In every pass over a part of
the batch, each block is gathered for its forward pass and again for its backward pass; the rest of the network
(embedding, head and final norm) is gathered once. The gradients of a step are reduced and scattered once. In a ring of
n processes, each one receives (n - 1) / n of what it gathers, and as much for a reduction.

The communication of a block overlaps with the computation of another one. Never hidden are the first gathering and the
last reduction: those of the embedding and of the first block. Latency, the slowest process, checkpoints and evaluations
are not in the estimate, so it is a bound from above on the speed of several GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from normplace.errors import UsageError
from normplace.lab.train.distributed import STAGES
from normplace.lab.train.throughput import flops_per_token
from normplace.models.transformer import Transformer
from normplace.residual import Residual

WEIGHT_BYTES = 4
"""Weights and gradients travel in float32, also under autocast."""
FORWARD_SHARE = 1 / 3
"""Share of a step's operations in its forward pass."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one process receives.

    Args:
        blocks: To gather all blocks once, or to reduce all their gradients.
        first: The same for the first block.
        root: The same for everything outside of the blocks.
        passes: Parts of a batch, each with a forward and a backward pass.
    """

    blocks: float
    first: float
    root: float
    passes: int

    @property
    def gathered(self) -> float:
        """Bytes of weights in one step."""
        return self.passes * (2 * self.blocks + self.root)

    @property
    def reduced(self) -> float:
        """Bytes of gradients in one step."""
        return self.blocks + self.root


def step_traffic(model: nn.Module, processes: int, accumulate: int = 1) -> Traffic:
    """What each of several processes receives in one step with ``parallel="fsdp"`` and one stream.

    Args:
        model: The network; its parameters may be on the meta device.
        processes: Number of processes.
        accumulate: Gradient accumulation steps.
    """
    blocks = [module for module in model.modules() if isinstance(module, Residual)]
    own = [_padded_weights(block.parameters(), processes) for block in blocks]
    inside = {parameter for block in blocks for parameter in block.parameters()}
    root = _padded_weights((parameter for parameter in model.parameters() if parameter not in inside), processes)
    received = WEIGHT_BYTES * (processes - 1) / processes
    return Traffic(received * sum(own), received * (own[0] if own else 0), received * root, accumulate)


def _padded_weights(parameters: Iterable[nn.Parameter], processes: int) -> int:
    """Number of weights, with every first dimension rounded up to a multiple of the number of processes."""
    shapes = [parameter.shape for parameter in parameters]
    return sum(math.ceil(shape[0] / processes) * processes * math.prod(shape[1:]) for shape in shapes)


@dataclass(frozen=True)
class ScalingEstimate:
    """One step on a number of processes.

    Args:
        processes: Number of processes, each with one GPU.
        accumulate: Gradient accumulation steps.
        traffic: What each process receives.
        compute: Seconds of computation.
        communication: Seconds of communication.
        exposed: Seconds of communication that no computation hides.
        hiding_bandwidth: Bytes per second at which the communication of the blocks is as long as the computation that
            hides it.
        tokens: Tokens of the step.
    """

    processes: int
    accumulate: int
    traffic: Traffic
    compute: float
    communication: float
    exposed: float
    hiding_bandwidth: float
    tokens: int

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.compute + self.exposed

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all processes together."""
        return self.tokens / self.seconds

    def days(self, tokens: float) -> float:
        """Days of training on a number of tokens."""
        return tokens / self.tokens_per_second / 86_400

    def gpu_hours(self, tokens: float) -> float:
        """Hours of all GPUs together, for a number of tokens."""
        return 24 * self.processes * self.days(tokens)


def estimate_step(
    model: Transformer,
    *,
    context: int,
    batch: int,
    accumulate: int,
    processes: int,
    flops_per_second: float,
    bandwidth: float,
) -> ScalingEstimate:
    """Estimate one step of ``normplace train`` with FSDP.

    Args:
        model: The network; its parameters may be on the meta device.
        context: Context length in tokens.
        batch: Sequences per step, over all processes.
        accumulate: Gradient accumulation steps.
        processes: Number of processes, each with one GPU; one process does not communicate.
        flops_per_second: Operations per second of one GPU in training, as measured: tokens per second times
            :func:`~normplace.lab.train.throughput.flops_per_token`.
        bandwidth: Bytes per second that one GPU receives in a collective operation.

    Raises:
        UsageError: If the batch cannot be split evenly, or the placement has more than one stream or parallel branches.

    Example:
        >>> from normplace.models.transformer import TransformerConfig
        >>> model = Transformer(TransformerConfig(256, 64, 4), device="meta")
        >>> shape = {"context": 128, "batch": 16, "accumulate": 1, "flops_per_second": 1e12}
        >>> one, two = (estimate_step(model, processes=n, bandwidth=1e11, **shape) for n in (1, 2))
        >>> one.exposed, 1.5 < two.tokens_per_second / one.tokens_per_second < 2
        (0.0, True)
    """
    if batch % (accumulate * processes):
        raise UsageError(
            f"a batch of {batch} sequences cannot be split evenly over {processes} processes and {accumulate} "
            f"accumulation steps: make it a multiple of {accumulate * processes}."
        )
    if STAGES[model.config.rule.streams]:
        raise UsageError(
            f"the blocks of {model.config.rule.name} are gathered more often than the estimate knows: choose a "
            "placement with one stream, such as pre or peri."
        )
    traffic = step_traffic(model, processes, accumulate)
    flops = flops_per_token(model, context)
    compute = batch * context * flops / flops_per_second / processes
    head = 6.0 * model.config.vocab_size * model.config.dim
    in_blocks = compute / accumulate * (1 - head / flops)
    forward, backward = FORWARD_SHARE * in_blocks, (1 - FORWARD_SHARE) * in_blocks
    gathering = traffic.blocks / bandwidth
    exposed = accumulate * ((traffic.root + traffic.first) / bandwidth + max(0.0, gathering - forward))
    exposed += (accumulate - 1) * max(0.0, gathering - backward) + max(0.0, 2 * gathering - backward)
    exposed += (traffic.root + traffic.first) / bandwidth
    return ScalingEstimate(
        processes,
        accumulate,
        traffic,
        compute,
        (traffic.gathered + traffic.reduced) / bandwidth,
        exposed,
        max(traffic.blocks / forward, 2 * traffic.blocks / backward),
        batch * context,
    )
