"""Write docs/cli.md from the command line's own parser. Describes no command itself.

It reads the parser, not the text of `--help`, which wraps to the terminal and differs between versions of Python.
"""

import argparse
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from taglio.cli.parser import build_parser

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.generated_page import DOCS, main

PAGE = DOCS / "cli.md"
HEAD = """# The command line

<!-- Written by `make reference` from the parser in src/taglio/cli/: change that, not this file. -->
"""


def render(parser: argparse.ArgumentParser) -> str:
    """The whole page: the program, then each command in the parser's order."""
    commands = list(_commands(parser))
    parts = [HEAD, *_section(parser, "", level=2)]
    if commands:
        parts += ["| command | what it does |", "| --- | --- |"]
        for command, summary in commands:
            parts.append(f"| [`{command.prog}`](#{_anchor(command.prog)}) | {_cell(summary)} |")
        parts.append("")
    for command, summary in commands:
        parts += _section(command, summary, level=2)
    return "\n".join(parts).rstrip() + "\n"


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every command below `parser` with its one-line help, nested ones behind their own; an alias only once."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            if name in summaries and summaries[name] != argparse.SUPPRESS:
                yield command, summaries[name] % {"prog": command.prog}
                yield from _commands(command)


def _section(parser: argparse.ArgumentParser, summary: str, level: int) -> list[str]:
    description = inspect.cleandoc(parser.description or summary)
    lines = [f"{'#' * level} {parser.prog}", "", "```", _usage(parser), "```", ""]
    lines += [_fill(parser, description), ""] if description else []
    for group in parser._action_groups:
        rows = [_row(parser, action) for action in group._group_actions if _shown(action)]
        if not rows:
            continue
        if group.description:
            lines += [_fill(parser, inspect.cleandoc(group.description)), ""]
        lines += [f"| {group.title or 'options'} | meaning | default |", "| --- | --- | --- |", *rows, ""]
    if parser.epilog:
        lines += [_fill(parser, inspect.cleandoc(parser.epilog)), ""]
    return lines


def _shown(action: argparse.Action) -> bool:
    if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
        return False
    return action.help != argparse.SUPPRESS


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    optional = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words.append("COMMAND ...")
        elif not _shown(action):
            continue
        elif not action.option_strings:
            words.append(_value(action))
        elif action.required:
            words.append(_flags(action, action.option_strings[-1:]))
        else:
            optional = True
    return " ".join(words + ["[options]"] * optional)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    name = _flags(action, action.option_strings) if action.option_strings else _value(action)
    meaning = _fill(parser, action.help or "", action)
    if action.choices is not None and action.metavar is not None:
        meaning += f" (one of {', '.join(map(str, action.choices))})"
    return f"| `{_cell(name)}` | {_cell(meaning)} | {_default(action)} |"


def _flags(action: argparse.Action, flags: Sequence[str]) -> str:
    text = ", ".join(flags)
    return text if action.nargs == 0 else f"{text} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        names = (action.metavar,) if isinstance(action.metavar, str) else tuple(action.metavar)
    elif action.choices is not None:
        names = ("{" + ",".join(map(str, action.choices)) + "}",)
    else:
        names = (action.dest.upper() if action.option_strings else action.dest,)
    if isinstance(action.nargs, int):
        return " ".join(names if len(names) > 1 else names * action.nargs)
    name = " ".join(names)
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name)


def _default(action: argparse.Action) -> str:
    if action.required and action.option_strings:
        return "required"
    if action.default in (None, False, argparse.SUPPRESS, "") or action.default in ([], {}) or action.nargs == 0:
        return ""
    return f"`{_cell(str(action.default))}`"


def _fill(parser: argparse.ArgumentParser, text: str, action: argparse.Action | None = None) -> str:
    """`%(default)s` and its like filled in, as argparse does where it prints help."""
    if action is None:
        return text.replace("%(prog)s", parser.prog)
    values = {name: value for name, value in vars(action).items() if value is not argparse.SUPPRESS}
    kind = values.get("type")
    values["type"] = getattr(kind, "__name__", kind)
    if values.get("choices") is not None:
        values["choices"] = ", ".join(map(str, values["choices"]))
    return text % {**values, "prog": parser.prog} if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main(PAGE, lambda: render(build_parser()), __doc__))
