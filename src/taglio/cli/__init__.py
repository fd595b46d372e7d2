"""The command line: parse, call one function, print, return the exit code. Decides nothing."""

import argparse
import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from taglio.cli.output import INTERRUPTED
from taglio.cli.parser import build_parser, run
from taglio.cli.words import as_flags
from taglio.cores import available_cores
from taglio.errors import BadOption, TaglioError

# OpenBLAS is in NumPy's own packages, MKL in Anaconda's, Accelerate in those for macOS.
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 only on success)."""
    remarks = logging.StreamHandler(sys.stderr)
    remarks.setFormatter(logging.Formatter("taglio: %(message)s"))
    log = logging.getLogger("taglio.flow")
    log.addHandler(remarks)
    try:
        before, after = _split(_readable(sys.argv[1:] if arguments is None else arguments))
        # A newcomer who types `taglio` alone asks what it can do.
        options = build_parser().parse_args(before or ["--help"], argparse.Namespace(after=after))
        log.setLevel(logging.WARNING if getattr(options, "json", False) else logging.INFO)
        _limit_threads(options)
        code = run(options)
        sys.stdout.flush()
        return code
    except TaglioError as error:
        sys.stderr.write(f"taglio: {type(error).__name__}: {as_flags(' '.join(str(error).splitlines()))}\n")
        return error.exit_code
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except ImportError as error:  # a compiled module raises this for Ctrl-C while it is imported
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _stopped(error.__cause__)
        raise
    except BrokenPipeError:
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
    _open_streams()
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signal_number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(signal_number, _interrupt)
    code = main()
    try:
        sys.stdout.flush()
    except OSError:  # the reader has gone, or the disk is full: leave nothing to write at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if "ray" in sys.modules:
        # After Ctrl-C Ray's threads may still be in a request, and would crash in the interpreter's own exit; its
        # daemons notice that this process ended, and end what it had started.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _open_streams() -> None:
    """Make standard streams accept every message. A closed stream is replaced: otherwise the next file would get its
    descriptor, and with it what libraries print. Characters that the encoding lacks become question marks.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w")  # open until the end
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _limit_threads(options: argparse.Namespace) -> None:
    """Let NumPy's linear algebra use as many threads as sessions do: `--threads`, or the cores that this process may
    use, since it does not know a container's quota. It reads its limit when NumPy is imported. Environment variables
    take precedence."""
    threads = getattr(options, "threads", None) or available_cores()
    for name in _THREADS:
        os.environ.setdefault(name, str(threads))


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Stop as Ctrl-C does, so that temporary files are removed."""
    del frame
    raise KeyboardInterrupt(number)


def _stopped(stop: KeyboardInterrupt) -> int:
    sys.stderr.write("taglio: stopped; the results of earlier stages are intact\n")
    return 128 + stop.args[0] if stop.args else INTERRUPTED


def _readable(arguments: Sequence[str]) -> list[str]:
    """The arguments. Raises BadOption for bytes that are not UTF-8: artifacts could not name such a file."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise BadOption(f"{argument!a}: not UTF-8: rename the file") from None
    return list(arguments)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after the first "--", because argparse would mix up the command for emulate."""
    if arguments[:2] != ["cluster", "emulate"] or "--" not in arguments:
        return arguments, []
    separator = arguments.index("--")
    return arguments[:separator], arguments[separator + 1 :]
