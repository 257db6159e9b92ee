"""Compiled kernels that do several operations in one pass, for CPUs.

Where a model is small, most of a step is not arithmetic but the number of small operations and what they read and
write. These kernels are compiled by Numba at their first call and kept in its cache. They round otherwise than
PyTorch's operations, so that a deterministic run never uses them.

    choice.py      whether they are used
    machine.py     addresses, data types, the exponential function
    vectors.py     vectors in the compiler's own language
    decoding.py    norms, attention and feed-forward of a decoding step
    keys.py        a query beside keys and values in memory
    sampling.py    one draw a row
    training.py    norms and rotations, and the backward pass of a feed-forward block
    logprobs.py    log-probabilities over a vocabulary
    tile.py        products of small matrices whose sums stay in registers
    products.py    products with weights
    rows.py        rows of scores, turned into weights and gradients
    attention.py   causal attention of packed tokens, forward and backward

Only `choice.py` may be imported without Numba. Dimension keys are those of the callers.
"""
