"""The command line: parse, call one function, print, return the exit code. Decides nothing."""

import argparse
import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from taglio.cli.blas import limit_threads
from taglio.cli.output import INTERRUPTED
from taglio.cli.parser import build_parser, run
from taglio.cli.words import as_flags
from taglio.errors import TaglioError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 only on success)."""
    remarks = logging.StreamHandler(sys.stderr)
    remarks.setFormatter(logging.Formatter("taglio: %(message)s"))
    log = logging.getLogger("taglio.flow")
    log.addHandler(remarks)
    try:
        own, after = _split(list(sys.argv[1:] if arguments is None else arguments))
        options = build_parser().parse_args(own, argparse.Namespace(after=after))
        log.setLevel(logging.WARNING if getattr(options, "json", False) else logging.INFO)
        limit_threads(options)
        return run(options)
    except TaglioError as error:
        sys.stderr.write(f"taglio: {type(error).__name__}: {as_flags(' '.join(str(error).splitlines()))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("taglio: stopped; the results of earlier stages are intact\n")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        sys.stderr.write("taglio: out of memory: lower --memory-limit, or give smaller inputs with --shape\n")
        return 2
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        name = error.filename or "input/output"
        sys.stderr.write(f"taglio: {name}: {why}; the results of earlier stages are intact\n")
        return 2
    finally:
        log.removeHandler(remarks)


def entry() -> NoReturn:
    """`taglio` as a process: run the command line and exit with its code."""
    code = main()
    if "ray" in sys.modules:
        # After Ctrl-C Ray's threads may still be in a request, and would crash in the interpreter's own exit; its
        # daemons notice that this process ended, and end what it had started.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after the first "--", because argparse would mix up the command for emulate."""
    if arguments[:1] != ["emulate"] or "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]
