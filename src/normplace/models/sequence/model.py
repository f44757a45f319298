"""Causal sequence models with any mixer and any placement."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, expect_layers, expect_whole
from normplace.models.positions import sinusoids
from normplace.models.sequence.mixers import Mixer, Relation, build_mixer
from normplace.models.sequence.official import convert_official, read_official
from normplace.models.transformer.generate import append_tokens, check_draws, draw, new_tokens
from normplace.models.transformer.init import Embedding, Projection, WeightInit, suited_init
from normplace.models.transformer.layer import SequentialLayer
from normplace.models.transformer.streams import build_streams
from normplace.norms import LayerNorm
from normplace.placement import Placement
from normplace.residual import NormChoice, Residual, build_slot_norm, reset_tree

STD = 0.02
"""Standard deviation of initial weights, as published for CausalRN."""
INTEGERS = (torch.long, torch.int, torch.short, torch.uint8)
RENAMED_PARAMETERS = {"places.": "position_embedding.", "blocks.": "layers."}
"""Prefixes of parameters by their earlier names. Files under those names stay readable."""


def with_present_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a model file under the present names of its parameters."""
    renamed = dict(tensors)
    for name in tensors:
        for old, new in RENAMED_PARAMETERS.items():
            if name.startswith(old):
                renamed[new + name.removeprefix(old)] = renamed.pop(name)
    return renamed


def _rename_parameters(_module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        (present,) = with_present_names({name.removeprefix(prefix): state[name]})
        state[prefix + present] = state.pop(name)


@dataclasses.dataclass
class SequenceState:
    """The state of a model after some tokens."""

    length: int
    layers: list[Any]


class SequenceModel(nn.Module):
    """Maps tokens to logits of the next token; its blocks are :class:`normplace.Residual` around a mixer's branches.

    For every mixer, the initial values are those published for CausalRN (arXiv 2406.16168): embedding and learned
    positions standard normal, other weights with standard deviation 0.02, biases 0. The last weights of a branch are
    smaller the deeper the network. If the placement has an output norm, all branch weights use Xavier's rule instead.

    Args:
        vocab_size: Number of different tokens.
        dim: Width of the stream.
        depth: Number of layers.
        mixer: A :class:`Mixer`, or the kind of one: ``relation``, ``attention``, ``linear-attention``,
            ``gated-linear`` or ``mamba-2``.
        positions: ``learned`` (needs ``context``), ``sinusoidal``, ``none``; with attention also ``rotary``,
            ``alibi`` or ``hard-alibi``.
        context: Number of learned positions, the longest possible sequence.
        placement: A :class:`Placement` or the name of a preset.
        norm: The norm of the slots; by default a LayerNorm without gain and bias, as published.
        eps: The eps of the default norm; published: 0.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If an argument is unknown or out of range, or arguments contradict each other.

    Examples:
        >>> model = SequenceModel(29, 32, 2, mixer="attention", positions="rotary")
        >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
        torch.Size([1, 5, 29])
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        depth: int,
        *,
        mixer: str | Mixer = "relation",
        positions: str = "learned",
        context: int | None = None,
        placement: str | Placement = "pre",
        norm: NormChoice | None = None,
        eps: float = 1e-5,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        expect_whole(1, vocab_size=vocab_size, dim=dim)
        expect_layers(depth=depth)
        self.mixer = build_mixer(mixer) if isinstance(mixer, str) else mixer
        expect_choice(f"kind of position for the mixer {self.mixer.kind!r}:", positions, self.mixer.positions)
        if positions != "learned" and context is not None:
            raise UsageError(f"positions={positions!r} have no longest sequence: leave context out.")
        if positions == "learned":
            if context is None:
                raise UsageError(
                    "learned positions need the length of the longest sequence: pass context=, such as 512."
                )
            expect_whole(1, context=context)
        self.vocab_size, self.dim, self.positions, self.context = vocab_size, dim, positions, context
        self.settings = None  # arguments for a file, if they are plain values
        if isinstance(placement, str) and norm is None:
            self.settings = {"vocab_size": vocab_size, "dim": dim, "depth": depth, "positions": positions}
            self.settings |= {"context": context, "placement": placement, "eps": eps}
        rule = Placement.of(placement)
        chosen: Any = functools.partial(LayerNorm, eps=eps, elementwise_affine=False) if norm is None else norm
        factory = {"generator": generator, "device": device, "dtype": dtype}
        self.embed = Embedding(vocab_size, dim, 1.0, **factory)
        self.position_embedding = None if context is None else Embedding(context, dim, 1.0, **factory)
        self.embedding_norm = build_slot_norm(chosen, "embedding", dim) if rule.embedding else None
        init = WeightInit(suited_init(rule), STD, depth)
        branches = [self.mixer.branches(dim, positions, init, **factory) for _ in range(depth)]
        spec = rule.for_single_block()
        self.layers = nn.ModuleList(
            SequentialLayer(*(Residual(branch, dim, spec, chosen, number, depth) for branch in layer))
            for number, layer in enumerate(branches, start=1)
        )
        self.streams = build_streams(rule.streams, chosen, dim, sum(map(len, branches)))
        self.final_norm = build_slot_norm(chosen, "final", dim) if rule.final else None
        self.head = Projection(dim, vocab_size, False, STD, **factory)
        self.to(device=device, dtype=dtype)  # norm factories do not take them
        self.register_load_state_dict_pre_hook(_rename_parameters)

    def reset_parameters(self) -> None:
        """Reset every parameter to an initial value."""
        for child in self.children():
            reset_tree(child)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the token after each position, (batch, length, tokens).

        Args:
            tokens: Integers, (batch, length).
            mask: True for real tokens, False for padding, (batch, length); None if all are real.

        Raises:
            UsageError: If tokens or mask have a wrong shape or dtype, or there are more tokens than learned positions.
        """
        if mask is not None and (mask.shape != tokens.shape or mask.dtype != torch.bool):
            raise UsageError(
                f"mask must be a boolean tensor of the shape {tuple(tokens.shape)}, got {mask.dtype} of shape "
                f"{tuple(mask.shape)}."
            )
        return self._run(tokens, 0, [{"mask": mask}] * len(self.layers))

    def prefill(self, tokens: Tensor) -> tuple[Tensor, SequenceState]:
        """Logits as in :meth:`forward`, and the state for :meth:`step`; without gradients.

        Args:
            tokens: Integers, (batch, length).
        """
        state = self._new_state()
        return self._continue(tokens, state), state

    def step(self, tokens: Tensor, state: SequenceState) -> Tensor:
        """Logits after one more token, (batch, tokens); without gradients.

        Args:
            tokens: The next token of each sequence, (batch,).
            state: The result of :meth:`prefill`; it is updated in place.

        Raises:
            UsageError: If there is not one token for each sequence, or no learned position for it.
        """
        if tokens.ndim != 1:
            raise UsageError(f"a step takes one token for each sequence, got the shape {tuple(tokens.shape)}.")
        return self._continue(tokens[:, None], state)[:, 0]

    def generate(
        self,
        tokens: Tensor,
        new: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The prompt followed by up to ``new`` generated tokens.

        Args:
            tokens: The prompt, (batch, length).
            new: Maximum number of new tokens.
            temperature: 0 for greedy decoding; higher for more uniform sampling.
            top_k: Sample among the k most likely tokens.
            top_p: Sample among the smallest set of likely tokens whose probabilities sum to this.
            stop: Token that ends a sequence; sequences that end early are padded with it.
            generator: Random generator on the model's device.

        Raises:
            UsageError: If a setting is out of range, or the result would be longer than the learned positions.
        """
        check_draws(new, temperature, top_k, top_p)
        self._check(tokens, new - 1)
        state = self._new_state()
        choose = functools.partial(draw, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        generated = new_tokens(tokens, new, lambda read: choose(self._continue(read, state)[:, -1]), stop)
        return append_tokens(tokens, generated)

    def _new_state(self) -> SequenceState:
        return SequenceState(0, [self.mixer.cache() for _ in self.layers])

    def _continue(self, tokens: Tensor, state: SequenceState) -> Tensor:
        with torch.no_grad():
            logits = self._run(tokens, state.length, [{"cache": cache} for cache in state.layers])
        state.length += tokens.shape[1]
        return logits

    def _run(self, tokens: Tensor, before: int, options: list[dict[str, Any]]) -> Tensor:
        """Logits, from the number of earlier tokens and the arguments of the mixing branch of each layer."""
        self._check(tokens, before)
        x = self.embed(tokens.long())
        length = tokens.shape[1]
        if self.position_embedding is not None:
            x = x + self.position_embedding.weight[before : before + length].to(x.dtype)
        elif self.positions == "sinusoidal":
            x = x + sinusoids(length, self.dim, x, before)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return self.head(self.streams.run(x, list(zip(self.layers, options, strict=True)), self.final_norm))

    def _check(self, tokens: Tensor, before: int) -> None:
        if not isinstance(tokens, Tensor):
            raise UsageError(f"tokens must be a tensor of shape (batch, length), got {type(tokens).__name__}.")
        if tokens.ndim != 2 or 0 in tokens.shape:
            raise UsageError(f"tokens must have the shape (batch, length), both at least 1, got {tuple(tokens.shape)}.")
        if tokens.dtype not in INTEGERS:
            raise UsageError(f"tokens must be integers, got {tokens.dtype}: pass them as torch.long.")
        if self.context is not None and before + tokens.shape[1] > self.context:
            raise UsageError(
                f"the model has {self.context} learned positions, but the sequence has {before + tokens.shape[1]} "
                "tokens: shorten it, or train with more context or other positions."
            )

    def extra_repr(self) -> str:
        """The mixer and the positions."""
        return f"{self.mixer}, positions {self.positions}"


class CausalRN(SequenceModel):
    """A causal relation network (Cui et al. 2024, arXiv 2406.16168).

    Its blocks are ``x + W3 N(BAR(W1 N(x) + b1, W2 N(x))) + b3``, without an MLP. ``BAR(a, b)_i`` is the mean over
    j <= i of ``act(N(a_i + b_j))``. As written (``pair_norm="joint"``), it needs a memory of one row per token. With
    ``separate``, ``N(a_i) + N(b_j)``, and the exponential it is a running sum with linear time and fixed memory.

    Args:
        vocab_size: Number of different tokens.
        dim: Width of the stream, E; published for copying: 192.
        depth: Number of layers; published for copying: 12.
        context: Number of learned positions, the longest possible sequence.
        hidden: Channels of a pair, D; published: E for copying, 4 E for text.
        heads: Number of channel groups that are normalized separately; published: 1.
        pair_norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        post_norm: Whether the mean is normalized.
        form: ``scan``, ``pairwise``, or ``auto`` for the scan if it computes the same.
        eps: The eps of every norm; published: 0.
        positions: ``learned``, ``sinusoidal`` or ``none``.
        placement: A :class:`Placement` or the name of a preset; published: ``pre``.
        norm: The norm of the slots; by default a LayerNorm without gain and bias, as published.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Examples:
        >>> model = CausalRN(29, 32, 2, context=64)
        >>> model.generate(torch.zeros(1, 5, dtype=torch.long), 3).shape
        torch.Size([1, 8])
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int = 192,
        depth: int = 12,
        *,
        context: int | None = None,
        hidden: int | None = None,
        heads: int = 1,
        pair_norm: str = "joint",
        activation: str = "exp",
        post_norm: bool = True,
        form: str = "auto",
        eps: float = 1e-5,
        positions: str = "learned",
        placement: str | Placement = "pre",
        norm: NormChoice | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            vocab_size,
            dim,
            depth,
            mixer=Relation(hidden, heads, pair_norm, activation, post_norm, eps, form),
            positions=positions,
            context=context,
            placement=placement,
            norm=norm,
            eps=eps,
            generator=generator,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def from_official(
        cls,
        weights: str | Path | Mapping[str, Tensor],
        *,
        pair_norm: str = "joint",
        activation: str = "exp",
        post_norm: bool = True,
        form: str = "auto",
    ) -> CausalRN:
        """Load the weights of the official code (github.com/FrankCuiCN/causal-relation-networks).

        The sizes are read from the tensors. A state dict does not hold the other settings, so they are arguments. Every
        norm is a LayerNorm with an eps of 0, as there. Several heads, RMS norms, the image models and the Transformers
        of that code are not supported.

        Args:
            weights: A state dict of the official ``Model``, or a file that it was saved to.
            pair_norm: ``joint`` for "Relation Network" (``PreNorm`` "exact"), ``separate`` for "Linear Relation
                Network" ("approx"), ``none`` for "no".
            activation: ``exp``, or the ``Activation`` of an ablation.
            post_norm: Whether the mean is normalized (``PostNorm``).
            form: ``scan``, ``pairwise``, or ``auto`` for the scan if it computes the same.

        Raises:
            UsageError: If the weights are not those of such a model.
        """
        tensors = read_official(weights)
        arguments, state = convert_official(tensors, pair_norm)
        options: dict[str, Any] = {
            "pair_norm": pair_norm,
            "activation": activation,
            "post_norm": post_norm,
            "form": form,
        }
        model = cls(**arguments, **options, eps=0.0, dtype=state["head.weight"].dtype)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip().rstrip(".")
            raise UsageError(f"the official weights do not fit together: {reason}.") from error
        return model
