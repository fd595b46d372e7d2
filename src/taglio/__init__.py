"""Find the fastest mixed-precision form of a neural network that keeps its answers, and prove it.

The whole flow in one call, or one stage at a time; every function takes and returns values (docs/api.md):

>>> result = taglio.optimize(model, max_error=0.02, effort=0.02, scheme="qdq-u8s8-asym-pc")
>>> result.plan.measured_error <= 0.02
True

Importing this package loads nothing heavy: a name is imported when it is first used. It turns ONNX Runtime's telemetry
off (ORT_DISABLE_TELEMETRY=0 in the environment leaves it on).
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taglio.compare.measure import compare_backends as compare_backends
    from taglio.errors import TaglioError as TaglioError
    from taglio.flow.error import error_model as error_model
    from taglio.flow.opening import Model as Model
    from taglio.flow.optimize import optimize as optimize
    from taglio.flow.place import candidate as candidate
    from taglio.flow.place import place as place
    from taglio.flow.profile import profile_model as profile_model
    from taglio.flow.result import Result as Result
    from taglio.flow.result import load as load
    from taglio.flow.run import run_model as run_model
    from taglio.lab.build import build as build
    from taglio.search.decide import plan_model as plan_model

# ONNX Runtime from 1.29 on sends names and hashes of models to its maker, unless told before it is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "Model": "taglio.flow.opening",
    "Result": "taglio.flow.result",
    "TaglioError": "taglio.errors",
    "build": "taglio.lab.build",
    "candidate": "taglio.flow.place",
    "compare_backends": "taglio.compare.measure",
    "error_model": "taglio.flow.error",
    "load": "taglio.flow.result",
    "optimize": "taglio.flow.optimize",
    "place": "taglio.flow.place",
    "plan_model": "taglio.search.decide",
    "profile_model": "taglio.flow.profile",
    "run_model": "taglio.flow.run",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'taglio' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
