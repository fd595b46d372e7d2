"""A component as OpenVINO Model Server serves it: its entry in config.json. Writes no repository.

Facts from its source (openvinotoolkit/model_server at 7e4df0c) and documentation (docs/parameters.md):

1. `plugin_config` goes to compile_model as it is, but for INFERENCE_NUM_THREADS, which is made a number. What it lacks
   gets the server's own value: without a hint LATENCY, and in a container all cores (applyDefaultCpuProperties). So it
   always has the precision, the streams and the threads.
2. `target_device` is a GPU by default where there is one, so it is always CPU.
3. Requests are joined only on a device BATCH:CPU, or after `batch_size`: neither is written.
4. It opens ONNX files too, with OpenVINO, in which neither error nor speed of a plan for ONNX Runtime was measured:
   such a plan is refused.
5. An entry may have no field that the schema does not name (src/schema.cpp).
6. `nireq` is how many requests are in flight in a model; without it the server asks OpenVINO for the best number
   (ModelInstance::getNumOfParallelInferRequestsUnbounded). Others wait for a free one.
"""

import json
from pathlib import Path

from taglio.deploy.folder import DeliveredModel, DeliveredPart
from taglio.deploy.served import Joining, ServedComponent, check_tensors, refused
from taglio.runtimes import openvino
from taglio.runtimes.signature import signature

SERVER = "OpenVINO Model Server"
ALWAYS = ("INFERENCE_PRECISION_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS")
_WHOLE_NUMBERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
# Types that its REST and gRPC interfaces carry.
_TYPES = {name: name for name in ("f16", "f32", "f64", "boolean", "string", *_WHOLE_NUMBERS)}


def served(model: DeliveredModel, part: DeliveredPart, name: str, joining: Joining, folder: Path) -> ServedComponent:
    """`part` as the server opens it under `name`; `joining` changes nothing: no requests are joined. All files are the
    delivered ones, and `folder` stays empty. Raises BadOption where its answers would differ."""
    del joining, folder
    if part.runtime != openvino.NAME:
        fix = "optimise with `runtime` openvino, or use `layout` triton"
        raise refused(part, SERVER, "it computes with OpenVINO, and the plan was measured in ONNX Runtime", fix)
    files, properties = model.files(part), json.loads((model.folder / part.settings).read_text())
    joined = f"requests are not joined there; measured with up to {model.way.joined} in a run"
    remarks = (joined,) if model.way.joined > 1 else ()
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
    return ServedComponent(part, name, files, properties, entry, 1, remarks)
