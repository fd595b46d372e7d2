"""Shorten ONNX Runtime's messages about inputs that it cannot run: without source files and checks. Pure functions."""

import re

_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_NODE = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: ")
# A source file with the signature of the function that refused, and its condition if it was a check.
_CHECK = re.compile(r"\S+\.(?:cc|cpp|cu|h|hpp):\d+ (?:.*? was false\.|[^()]*\([^()]*\)(?: const)?) ?")


def without_sources(error: object) -> str:
    """The message on one line, without source files, signatures and checks."""
    text = _NODE.sub(r"\1 \2: ", _CODE.sub("", " ".join(str(error).split())))
    return _CHECK.sub("", text)
