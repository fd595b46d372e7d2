"""Find the fastest mixed-precision form of a neural network that keeps its answers, and prove it.

The whole flow in one call, or one stage at a time; every function takes and returns values (docs/api.md):

>>> result = taglio.optimize(model, max_error=0.02, effort=0.02, scheme="qdq-u8s8-asym-pc")
>>> result.plan.measured_error <= 0.02
True

Importing this package loads nothing heavy: a name is imported when it is first used. It turns ONNX Runtime's telemetry
off (ORT_DISABLE_TELEMETRY=0 in the environment leaves it on).
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taglio.compare.measure import compare as compare
    from taglio.errors import TaglioError as TaglioError
    from taglio.flow.build import build as build
    from taglio.flow.error import error_model as error_model
    from taglio.flow.opening import Model as Model
    from taglio.flow.optimize import optimize as optimize
    from taglio.flow.place import candidate as candidate
    from taglio.flow.place import place as place
    from taglio.flow.plan import plan as plan
    from taglio.flow.profile import profile as profile
    from taglio.flow.result import Result as Result
    from taglio.flow.result import load as load
    from taglio.flow.run import run as run

# ONNX Runtime from 1.29 on sends names and hashes of models to its maker, unless told before it is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "Model": "taglio.flow.opening",
    "Result": "taglio.flow.result",
    "TaglioError": "taglio.errors",
    "build": "taglio.flow.build",
    "candidate": "taglio.flow.place",
    "compare": "taglio.compare.measure",
    "error_model": "taglio.flow.error",
    "load": "taglio.flow.result",
    "optimize": "taglio.flow.optimize",
    "place": "taglio.flow.place",
    "plan": "taglio.flow.plan",
    "profile": "taglio.flow.profile",
    "run": "taglio.flow.run",
}
__all__ = list(_HOMES)


def _public(name: str) -> Any:
    return getattr(import_module(_HOMES[name]), name)


class _Stage(ModuleType):
    """A package that can be called like the stage it is named after: taglio.plan is the planning package and the plan
    stage."""

    def __call__(self, *given: Any, **options: Any) -> Any:
        return _public(self.__name__.rpartition(".")[2])(*given, **options)

    @property
    def __wrapped__(self) -> Any:  # `inspect` and `help` read this
        return _public(self.__name__.rpartition(".")[2])


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and type(value) is ModuleType:  # the import system does this for subpackages
            value.__class__ = _Stage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'taglio' has no attribute {name!r}")
    if name in ("compare", "plan", "profile", "run"):
        return import_module(f"taglio.{name}")
    return _public(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
