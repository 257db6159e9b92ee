"""GPUs, their driver, and the builds that are to use them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trinity.common.config.keys import ACTOR, ROLLOUT_MODEL
from trinity.common.config.problems import Finding
from trinity.preflight.devices import is_cpu_build
from trinity.preflight.doctor.look import Look, looked, problem
from trinity.preflight.doctor.packages import torch_build
from trinity.utils.gpu import VISIBLE, device_count, gpu_count
from trinity.utils.packages import is_installed

PROGRAM = "nvidia-smi"
PROGRAM_S = 2.0
_FIELDS = "name,memory.total,memory.used,driver_version,compute_cap,mig.mode.current"
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)")
# Of the compute capability: the first with bfloat16 in hardware.
AMPERE = 8.0
BUSY_SHARE = 0.1


@dataclass(frozen=True)
class Gpu:
    """What the driver says of a GPU.

    Attributes:
        name: of the product.
        total_mib: its memory.
        used_mib: what other programs have of it.
        driver: version of the driver.
        capability: compute capability; 0: not told.
        is_divided: it is divided by MIG.
    """

    name: str
    total_mib: float
    used_mib: float
    driver: str
    capability: float
    is_divided: bool


def checks() -> Iterator[Look]:
    """Yield what was found, one look at a time."""
    gpus, problems, cuda = _asked()
    files = device_count()
    found = "; ".join(dict.fromkeys(f"{each.name}, {each.total_mib / 1024:.0f} GiB" for each in gpus))
    shown = f"{len(gpus)}: {found}" if gpus else "none"
    if gpu_count() < files:
        shown += f"; {VISIBLE} shows {gpu_count()} of {files}"
    yield looked("gpus", shown, *problems, *_unusual(gpus))
    driver = f"{gpus[0].driver}, for CUDA up to {cuda[0]}.{cuda[1]}" if gpus and cuda else "none"
    yield looked("driver", driver, *_driver_problems(cuda))
    yield looked("builds", *_builds(has_gpu=bool(gpus) or files > 0))


def listed() -> list[Gpu]:
    """Return the GPUs that the driver knows; none if it does not answer."""
    return _asked()[0]


def _asked() -> tuple[list[Gpu], list[Finding], tuple[int, int] | None]:
    """Return GPUs, problems of asking for them, and the driver's CUDA."""
    program = shutil.which(PROGRAM)
    if program is None:
        if not device_count():
            return [], [], None
        way_out = "install the driver's programs; in a container, start it with the NVIDIA runtime (`--gpus all`)"
        return [], [problem("W3810", f"there are NVIDIA device files, and no {PROGRAM} to ask", way_out)], None
    try:
        listed = _said(program, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
        cuda = _CUDA.search(_said(program))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stdout", None) or str(error)
        way_out = "restart the machine, or install the driver of the kernel that runs"
        return [], [problem("E3811", f"{PROGRAM} does not answer: {' '.join(str(said).split())[:200]}", way_out)], None
    gpus = [_read(line) for line in listed.splitlines() if line.strip()]
    return gpus, [], None if cuda is None else (int(cuda[1]), int(cuda[2]))


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=PROGRAM_S).stdout


def _read(line: str) -> Gpu:
    """Return the GPU of a line; what it does not tell is `[N/A]`."""
    name, total, used, driver, capability, mode = (part.strip() for part in line.rsplit(",", 5))
    return Gpu(name, _number(total), _number(used), driver, _number(capability), mode == "Enabled")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _unusual(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for number, gpu in enumerate(gpus):
        if gpu.used_mib > BUSY_SHARE * gpu.total_mib:
            used = f"GPU {number}: {gpu.used_mib:.0f} of {gpu.total_mib:.0f} MiB are used by other programs"
            yield problem("W3812", used, f"end them, or hide the GPU with {VISIBLE}")
        if 0 < gpu.capability < AMPERE:
            old = f"GPU {number} ({gpu.name}, compute capability {gpu.capability}) computes no bfloat16 in hardware"
            yield problem("W3813", old, f"set {ACTOR.fsdp_config.dtype} to float32 or float16")
        if gpu.is_divided:
            parted = f"GPU {number} is divided by MIG: a process sees one part of it"
            yield problem("W3814", parted, f"name the parts in {VISIBLE}, as MIG-...")


def _driver_problems(cuda: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield what PyTorch's CUDA has against the driver's.

    Within a major version newer builds run on older drivers (CUDA's minor version compatibility).
    """
    build = torch_build()
    if cuda is None or build is None or build[1] is None:
        return
    needed = int(build[1].partition(".")[0])
    if needed > cuda[0]:
        message = (
            f"PyTorch {build[0]} is built for CUDA {build[1]}, and the driver knows CUDA up to {cuda[0]}.{cuda[1]}"
        )
        yield problem("E3815", message, f"update the driver, or install a PyTorch that is built for CUDA {cuda[0]}")


def _builds(*, has_gpu: bool) -> tuple[str, *tuple[Finding, ...]]:
    """Return the installed builds, and what does not fit the machine."""
    build, problems = torch_build(), list[Finding]()
    if build is None:
        return ("PyTorch is not installed",)
    found = f"PyTorch for {'CUDA ' + build[1] if build[1] else 'CPUs'}"
    if has_gpu and build[1] is None:
        way_out = "install PyTorch as https://pytorch.org/get-started says for this driver"
        problems.append(problem("W3816", f"PyTorch {build[0]} is built for CPUs, and this machine has a GPU", way_out))
    if is_installed("vllm"):
        found += f", vLLM for {'CPUs' if is_cpu_build() else 'GPUs'}"
        if has_gpu is is_cpu_build():
            fits, other = ("GPUs", "CPUs") if has_gpu else ("CPUs", "GPUs")
            unfit = f"this build of vLLM is for {other}, and {'there is a GPU' if has_gpu else 'there is no GPU'}"
            problems.append(
                problem("W3817", unfit, f"install its build for {fits}, or set {ROLLOUT_MODEL.engine_type} to torch")
            )
    return (found, *problems)
