"""Compiled kernels that do several operations in one pass, for CPUs.

Where a model is small, most of a step is not arithmetic but the number of small operations and what they read and
write. These kernels are compiled by Numba at their first call and kept in its cache. They round otherwise than
PyTorch's operations, so that a deterministic run never uses them.

    choice.py      whether they are used
    machine.py     addresses, data types, the exponential function
    decoding.py    norms, attention and feed-forward of a decoding step
    sampling.py    one draw a row
    training.py    the backward pass of a feed-forward block
    tile.py        products of small matrices whose sums stay in registers
    products.py    products with weights
    attention.py   causal attention of packed tokens, forward and backward

Only `choice.py` may be imported without Numba. Dimension keys are those of the callers.
"""
