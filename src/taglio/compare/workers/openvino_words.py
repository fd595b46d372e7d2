"""What OpenVINO says of a model that it cannot read, without its source files and checks. Pure."""

import re

_NODE = re.compile(r"While validating ONNX node '<Node\((?P<kind>[^)]*)\): (?P<name>[^>]*)>': ?")
# Where one message ends and the next begins.
_END = re.compile(r"\n\s*\n|While validating ONNX node|\n-- |\nCheck '")
_NOISE = re.compile(r"Check '.*?' failed at \S+?:\d+:?|FrontEnd API failed with \w+:?|Node \([^)]*\): ", re.DOTALL)
_UNKNOWN = re.compile(r"No conversion rule found for operations: (?P<kinds>[^\n]+)")
# A node whose input comes from a node that was refused.
_FOLLOWS = ("must be static", "has to be known (static)", "Got A: dynamic")

_AXIS = "it takes one weight scale per input channel where ONNX means one per output channel: write pt, or use qdq"


def complaint(error: Exception) -> str:
    """What it does not know, or which node it refuses and why, leaving out nodes that only follow it; empty where
    `error` tells neither."""
    text = str(error)
    if unknown := _UNKNOWN.search(text):
        return f"OpenVINO has no conversion for {unknown['kinds'].strip()}"
    for found in _NODE.finditer(text):
        words = " ".join(_NOISE.sub(" ", _END.split(text[found.end() :], maxsplit=1)[0]).split())
        if words and not any(each in words for each in _FOLLOWS):
            why = f" ({_AXIS})" if found["kind"] == "QLinearConv" and "dequantization scale elements" in words else ""
            return f"OpenVINO cannot read {found['kind']} {found['name']}: {words[:200]}{why}"
    return ""
