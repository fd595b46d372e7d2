"""The user's PyTorch model, and tensors to and from arrays. Converts and quantises nothing."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from taglio.compare.workers.contract import Array, Run


def original(source: str) -> nn.Module:
    """A module from `module:function` (also `folder/module.py:function`) or from an exported program."""
    path, _, name = source.rpartition(":")
    if source.endswith(".pt2"):
        exported: nn.Module = torch.export.load(source).module()
        return exported
    with contextlib.suppress(ValueError):
        sys.path.insert(0, str(Path(path).parent.resolve()))
    torch.manual_seed(0)  # each process builds the module again: random weights must be equal in all of them
    module = importlib.import_module(Path(path).name.removesuffix(".py"))
    built: nn.Module = getattr(module, name)()
    return built.eval()


def runner(model: Callable[..., Any]) -> Run:
    """The model as a function from arrays to arrays."""

    def run(sample: Sequence[Array]) -> list[Array]:
        with torch.inference_mode():
            return [np.asarray(output) for output in flat(model(*tensors(sample)))]

    return run


def tensors(sample: Sequence[Array]) -> tuple[torch.Tensor, ...]:
    """A sample as tensors."""
    return tuple(torch.from_numpy(array) for array in sample)


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in whatever a module takes or returns, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
