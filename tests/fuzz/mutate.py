"""Damage a file: bytes, JSON values (of a model, those of its JSON form), lines of text. Deterministic in a seed."""

import contextlib
import copy
import json
import random
from typing import Any

import onnx
from google.protobuf import json_format

INTEGERS = (-1, 0, 1, 2, 3, 7, 16, 99, 255, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
NUMBERS = (0.0, -0.0, -1.0, 0.5, 1e-308, 1e308, -1e308, 1e30, float("inf"), float("nan"))
TEXTS = ("", "x", "y", " ", "../up", "/etc/hostname", "é", "a" * 5000, "\x00", "%s%n", "nan", "-1", "conv0", "int8")
VALUES: tuple[Any, ...] = (None, True, False, *INTEGERS, *NUMBERS, *TEXTS, [], {}, [[]], [1, 2], {"x": 1})


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few bytes flipped, inserted, deleted, repeated or cut off."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(6):
            case 0:
                result[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                result[at:at] = rng.randbytes(rng.choice((1, 4, 40)))
            case 2:
                del result[at : at + rng.choice((1, 3, 30))]
            case 3:
                result[at:at] = result[at : at + rng.choice((1, 8, 200))]
            case 4 if rng.random() < 0.2:
                del result[at:]
            case _:
                result[at : at + 1] = bytes(byte ^ (1 << rng.randrange(8)) for byte in result[at : at + 1])
    return bytes(result)


def damage_model(rng: random.Random, data: bytes) -> bytes:
    """A model whose JSON form is damaged as `damage_json` does, in a way that protobuf can hold."""
    model = onnx.load_model_from_string(data)
    whole = json_format.MessageToDict(model, preserving_proto_field_name=True, use_integers_for_enums=True)
    while True:
        damaged = copy.deepcopy(whole)
        _damage_values(rng, damaged)
        with contextlib.suppress(json_format.ParseError, ValueError, OverflowError):
            return json_format.ParseDict(damaged, onnx.ModelProto()).SerializeToString()


def damage_json(rng: random.Random, data: bytes) -> bytes:
    """JSON with a few values replaced, keys deleted or renamed, lists shortened, repeated or shuffled."""
    whole = json.loads(data)
    _damage_values(rng, whole)
    return json.dumps(whole).encode(errors="surrogatepass")


def _damage_values(rng: random.Random, whole: Any) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        spots = list(_spots(whole))
        if not spots:
            break
        # Long lists of numbers outnumber everything else: half of the time choose by depth first.
        if rng.random() < 0.5:
            depth = rng.choice(sorted({depth for _, _, depth in spots}))
            spots = [spot for spot in spots if spot[2] == depth]
        holder, key, _ = rng.choice(spots)
        value = holder[key]
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(value, list) and value:
                holder[key] = rng.choice((value[:-1], value[:1], value * 2, rng.sample(value, len(value)), []))
            case 1 | 2 if isinstance(value, int | float) and not isinstance(value, bool):
                holder[key] = rng.choice(
                    (-value, value * 1e6, value + 1, value * 1e300, rng.choice(NUMBERS), rng.choice(INTEGERS))
                )
            case 3 if isinstance(holder, dict):
                other = rng.choice(list(holder))
                holder[key], holder[other] = holder[other], holder[key]
            case 4 if isinstance(holder, dict):
                holder[f"{key}{rng.choice(('x', '', '/'))}"] = holder.pop(key)
            case _:
                other, at, _ = rng.choice(spots)
                holder[key] = copy.deepcopy(other[at] if rng.random() < 0.3 else rng.choice(VALUES))


def _spots(value: Any, depth: int = 0) -> Any:
    if depth > 30:
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key, depth
        if isinstance(value[key], dict | list):
            yield from _spots(value[key], depth + 1)


def damage_text(rng: random.Random, data: bytes) -> bytes:
    """Lines deleted, repeated and moved, values replaced."""
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        name, equals, _ = lines[at].partition("=")
        lines[at] = f"{name}= {json.dumps(rng.choice(VALUES))}" if equals and rng.random() < 0.6 else ""
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "\n".join(lines).encode(errors="surrogatepass")
