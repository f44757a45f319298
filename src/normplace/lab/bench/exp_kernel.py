"""A Triton kernel that does nothing but exponentials, to see how many a GPU can do."""
# Triton compiles these functions by its own rules.

import triton
import triton.language as tl


@triton.jit
def exponentials(out, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Apply exp2(-x) to each of BLOCK elements COUNT times, in chains that are independent of each other."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = (places % 7).to(tl.float32)
    for _ in range(COUNT):
        x = tl.exp2(-x)  # tends to 0.64, never to a number that is slow to compute with
    tl.store(out + places, x)
