"""Damage a file: bytes, protobuf fields, JSON values, lines of text. Deterministic in the generator that is given."""

import copy
import json
import random
from typing import Any, cast

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

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
    """A model with some fields of some messages changed, deleted, repeated, swapped or taken from elsewhere in it."""
    model = onnx.load_model_from_string(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        messages = list(_messages(model))
        # Tensors and shapes outnumber everything else: first choose a type of message.
        kinds = sorted({type(each).__name__ for each in messages})
        kind = rng.choice(kinds)
        message = rng.choice([each for each in messages if type(each).__name__ == kind])
        field = rng.choice(cast("list[FieldDescriptor]", list(message.DESCRIPTOR.fields)))
        try:
            _damage_field(rng, message, field, messages)
        except (TypeError, ValueError, DecodeError, UnicodeError):
            continue  # protobuf itself holds no such value
    return model.SerializeToString()


def _messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                found += _messages(each)
    return found


def _damage_field(rng: random.Random, message: Message, field: FieldDescriptor, messages: list[Message]) -> None:
    name = field.name
    if rng.random() < 0.15:
        message.ClearField(name)
        return
    if field.is_repeated:
        items = getattr(message, name)
        action = rng.randrange(5)
        if action == 0 and len(items):
            del items[rng.randrange(len(items))]
        elif action == 1 and len(items) > 1:
            whole = list(items)
            rng.shuffle(whole)
            kept = [each.SerializeToString() if isinstance(each, Message) else each for each in whole]
            message.ClearField(name)
            for each in kept:
                if field.type == FieldDescriptor.TYPE_MESSAGE:
                    getattr(message, name).add().ParseFromString(each)
                else:
                    getattr(message, name).append(each)
        elif action == 2 and len(items):
            items.append(items[rng.randrange(len(items))])
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            donors = [each for each in messages if field.message_type == each.DESCRIPTOR]
            if donors:
                items.add().ParseFromString(rng.choice(donors).SerializeToString())
        elif len(items) and rng.random() < 0.8:
            items[rng.randrange(len(items))] = _scalar(rng, field, messages)
        else:
            items.append(_scalar(rng, field, messages))
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        donors = [each for each in messages if field.message_type == each.DESCRIPTOR and each is not message]
        if donors:
            getattr(message, name).ParseFromString(rng.choice(donors).SerializeToString())
    else:
        setattr(message, name, _scalar(rng, field, messages))


def _scalar(rng: random.Random, field: FieldDescriptor, messages: list[Message]) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        names = [
            value
            for each in messages
            for sub, value in each.ListFields()
            if sub.type == field.type and not sub.is_repeated
        ]
        return rng.choice(names) if names and rng.random() < 0.7 else rng.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 4, 64)))
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice(NUMBERS)
    if field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return rng.choice((*field.enum_type.values_by_number, 99))
    return rng.choice(INTEGERS) if rng.random() < 0.7 else rng.randrange(30)


def damage_json(rng: random.Random, data: bytes) -> bytes:
    """JSON with a few values replaced, keys deleted or renamed, lists shortened, repeated or shuffled."""
    whole = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        spots = list(_spots(whole))
        if not spots:
            break
        # Long lists of numbers outnumber everything else: half of the time choose by depth first.
        if rng.random() < 0.5:
            depth = rng.choice(sorted({depth for _, _, depth in spots}))
            spots = [each for each in spots if each[2] == depth]
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
    return json.dumps(whole).encode(errors="surrogatepass")


def _spots(value: Any, depth: int = 0) -> Any:
    if depth > 30:
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key, depth
        if isinstance(value[key], dict | list):
            yield from _spots(value[key], depth + 1)


def damage_text(rng: random.Random, data: bytes) -> bytes:
    """Lines deleted, repeated and swapped, values replaced."""
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        head, equals, _ = lines[at].partition("=")
        match rng.randrange(5):
            case 0:
                lines[at] = ""
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 3 if equals:
                tail = rng.choice([line.partition("=")[2] for line in lines if "=" in line])
                lines[at] = f"{head}={tail}"
            case _:
                value = rng.choice(VALUES)
                lines[at] = f"{head}= {_toml(value)}" if equals else _toml(value)
    return "\n".join(lines).encode(errors="surrogatepass")


def _toml(value: object) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else json.dumps(value)
