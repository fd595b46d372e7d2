"""The instruction sets of this machine's processor, and what follows from them for int8. Runs no model."""

import os
import platform
from collections.abc import Collection
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Instruction sets that determine the speed and the sums of int8, and the speed of bfloat16.
_INSTRUCTIONS = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip
# Instruction sets that add products of u8×s8 in 32 bits: VNNI on x86, every 64-bit Arm.
_WIDE_SUMS = frozenset({"avx_vnni", "avx512_vnni", "amx_int8", "asimd"})
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Speed-ups over float32 of whole networks whose operations are nearly all int8, measured on 21 and 23 November 2026:
# ResNet152V2 1.5 without VNNI and 2.4 with it, yolo11x-seg 3.0 with it.
_GAIN_BEFORE_VNNI, _GAIN = 1.5, 2.5
# oneDNN, which OpenVINO computes with, uses nothing newer than the instruction set in this environment variable.
CAP = "ONEDNN_MAX_CPU_ISA"
_BEFORE_AVX512 = frozenset({"SSE41", "AVX", "AVX2"})


def instructions() -> tuple[str, ...]:
    """The instruction sets that every runtime may use here: the processor's, less what a cap on oneDNN forbids."""
    return capped(listed(), os.environ.get(CAP, ""))


def capped(instructions: tuple[str, ...], cap: str) -> tuple[str, ...]:
    """`instructions` under a value of ONEDNN_MAX_CPU_ISA. Only caps to AVX2 or less are known here; others change
    nothing."""
    if cap.upper() not in _BEFORE_AVX512:
        return instructions
    return tuple(name for name in instructions if not name.startswith(("avx512", "avx_vnni", "amx")))


def cpuinfo() -> dict[str, str]:
    """What Linux says of the last processor, by key; empty elsewhere."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@cache
def listed() -> tuple[str, ...]:
    """The processor's instruction sets, by Linux's names; empty where the operating system does not list them."""
    about = cpuinfo()
    flags = set(about.get("flags", about.get("Features", "")).split())
    if not about and platform.machine().lower() == "arm64":  # macOS, Windows
        flags = {"asimd"}
    return tuple(name for name in _INSTRUCTIONS if name in flags)


def sums_saturate(instructions: Collection[str]) -> bool:
    """Whether ONNX Runtime adds two products of u8×s8 in 16 bits on a processor with these instruction sets, so that
    they may saturate: on x86 before VNNI. It is assumed of an unknown processor: 7-bit weights are right on any.
    """
    return _WIDE_SUMS.isdisjoint(instructions)


def int8_gain(instructions: Collection[str]) -> float:
    """The speed-up over float32 that int8 is expected to reach on a whole network of products."""
    return _GAIN_BEFORE_VNNI if sums_saturate(instructions) else _GAIN


def computes_bfloat16(instructions: Collection[str]) -> bool:
    """Whether the processor has products of bfloat16."""
    return not _BFLOAT16.isdisjoint(instructions)
