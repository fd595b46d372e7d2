"""A component as OpenVINO Model Server serves it: its entry in config.json. Writes no repository.

Facts from its source (openvinotoolkit/model_server at 7e4df0c) and documentation (docs/parameters.md):

1. `plugin_config` goes to compile_model as it is, but for INFERENCE_NUM_THREADS, which is made a number. What it lacks
   gets the server's own value: without a hint LATENCY, and in a container all cores (applyDefaultCpuProperties). So it
   always has the precision, the streams and the threads.
2. `target_device` is a GPU by default where there is one, so it is always CPU.
3. Requests are joined only on a device BATCH:CPU, or after `batch_size`: neither is written.
4. It opens ONNX files too, with OpenVINO. Answers of a float model then agree up to rounding, which is proven; int8 is
   computed otherwise than in ONNX Runtime, where its error was measured, so a quantised ONNX file is refused.
5. An entry may have no field that the schema does not name (src/schema.cpp).
6. `nireq` is how many requests are in flight in a model; without it the server asks OpenVINO for the best number
   (ModelInstance::getNumOfParallelInferRequestsUnbounded). Others wait for a free one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from taglio.deploy.folder import DeliveredModel, DeliveredPart
from taglio.deploy.served import Joining, ServedComponent, check_tensors, refused
from taglio.model.quantized import listed, quantized_operators
from taglio.runtimes import openvino
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import export, runtime_version
from taglio.runtimes.signature import signature

SERVER = "OpenVINO Model Server"
ALWAYS = ("INFERENCE_PRECISION_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS")
_WHOLE_NUMBERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
# Types that its REST and gRPC interfaces carry.
_TYPES = {name: name for name in ("f16", "f32", "f64", "boolean", "string", *_WHOLE_NUMBERS)}


def served(model: DeliveredModel, part: DeliveredPart, name: str, joining: Joining, folder: Path) -> ServedComponent:
    """`part` as the server opens it under `name`; `folder` takes files that differ from the delivered ones. `joining`
    changes nothing: no requests are joined. Raises BadOption where its answers would differ."""
    del joining
    settings = json.loads((model.folder / part.settings).read_text())
    if part.runtime == openvino.NAME:
        files, properties, remarks = model.files(part), settings, tuple[str, ...]()
    else:
        files, properties = _converted(model, part, settings, folder)
        remarks = ("planned for ONNX Runtime, served by OpenVINO: the answers agree, the speed was not measured",)
    if model.way.joined > 1:
        remarks += (f"requests are not joined there; measured with up to {model.way.joined} in a run",)
    missing = [key for key in ALWAYS if key not in properties]
    if missing:
        raise refused(part, SERVER, f"{part.settings} does not set {missing[0]}", "run taglio build again")
    ports = signature(openvino.NAME, files[0])
    check_tensors(part, SERVER, (*ports.inputs, *ports.outputs), _TYPES)
    entry = {
        "name": name,
        "base_path": name,  # relative to config.json
        "target_device": "CPU",
        "nireq": model.way.at_once,
        "plugin_config": {key: str(value) for key, value in properties.items()},
    }
    return ServedComponent(part, name, files, openvino.NAME, properties, entry, 1, remarks)


def _converted(
    model: DeliveredModel, part: DeliveredPart, settings: Mapping[str, Any], folder: Path
) -> tuple[tuple[Path, ...], Mapping[str, Any]]:
    """A float ONNX file in OpenVINO's format, and the properties to open it with."""
    path = model.files(part)[0]
    counts = quantized_operators(onnx.load(path, load_external_data=False))
    optimise = "optimise with `runtime` openvino, or use `layout` triton"
    if counts:
        raise refused(
            part,
            SERVER,
            f"it computes with OpenVINO, and the error of {listed(counts)} was measured in ONNX Runtime",
            optimise,
        )
    runtime_version(openvino.NAME)  # refuses, with the fix, where OpenVINO is not installed
    options = SessionOptions(settings["intra_op_num_threads"], at_once=model.way.at_once, runtime=openvino.NAME)
    exported = export(path, folder, options)
    return exported.files, exported.settings
