"""Shorten OpenVINO's messages about a model that it cannot read: without source files and checks. Pure functions."""

import re

from taglio.errors import one_line

_NODE = re.compile(r"While validating ONNX node '<Node\((?P<kind>[^)]*)\): (?P<name>[^>]*)>': ?")
# The end of one message.
_END = re.compile(r"\n\s*\n|While validating ONNX node|\n-- |\nCheck '")
_NOISE = re.compile(
    r"Exception from \S+?:\d+:?|Check '.*?' failed at \S+?:\d+:?|FrontEnd API failed with \w+:?|Node \([^)]*\): ",
    re.DOTALL,
)
_UNKNOWN = re.compile(r"No conversion rule found for operations: (?P<kinds>[^\n]+)")
# Messages about a node whose input comes from a refused node.
_FOLLOWS = ("must be static", "has to be known (static)", "Got A: dynamic")


def complaint(error: Exception) -> str:
    """The unknown operation, or the refused node and why, without nodes that fail only because of it; "" if `error` has
    neither."""
    text = str(error)
    if unknown := _UNKNOWN.search(text):
        return f"OpenVINO has no conversion for {unknown['kinds'].strip()}"
    for match in _NODE.finditer(text):
        words = " ".join(_NOISE.sub(" ", _END.split(text[match.end() :], maxsplit=1)[0]).split())
        if words and not any(phrase in words for phrase in _FOLLOWS):
            return f"OpenVINO cannot read {match['kind']} {match['name']}: {one_line(words, 200)}"
    return ""


def without_sources(error: object) -> str:
    """The message on one line, without source files and checks."""
    return " ".join(_NOISE.sub(" ", str(error)).split())
