"""A test device that computes on the CPU and refuses what CUDA refuses.

`device.install()` gives PyTorch a device `strict` through the key for devices outside of its own source (PrivateUse1).
Its tensors are real tensors with storages of their own, so that autograd, views, `.data`, optimizers and saving treat
them as they treat those of a card. It lasts as long as the process and must be there before the first backward pass;
the tests of this folder therefore run in a process of their own (`child.py`), one for each file.

What is modelled, each with a test in `test_refusals.py`:

- tensors of two devices in one operation, with CUDA's exceptions: one CPU number (0 dimensions) in an elementwise
  operation, CPU indices in `x[indices]`, `where`, filling with a number, copies;
- `numpy()` and the array protocol; device memory behind an address that the CPU cannot read;
- a generator of another device; a random stream of the device's own, beside the CPU's;
- `torch.use_deterministic_algorithms`: the operations without a deterministic CUDA kernel, and matrix products without
  CUBLAS_WORKSPACE_CONFIG;
- matrix products of integers; pinning of what is not on the CPU;
- backward passes in a thread of the device, where thread-local state of the caller is not seen;
- autocast with CUDA's lists of operations;
- how often the host waits for the device (`device.synchronizations`).

What is not: asynchronous execution and its races, streams, events, captured graphs, memory limits, kernels that round
otherwise or are chosen by shape, limits of a kernel's number of threads, generators of the device (PyTorch takes
none from Python), collectives, Triton, shared memory between processes, casts kept by autocast.
"""
