"""The command serve: built models behind the Open Inference Protocol."""

import argparse
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from taglio.cli.output import emit
from taglio.cluster import file as cluster_file
from taglio.errors import BadOption, plural
from taglio.runtimes.way import Way

if TYPE_CHECKING:  # needs taglio[serve]
    from taglio.serve.served import ServedModel

VARIABLE = "TAGLIO_SERVE_TOKEN"


def serve(options: argparse.Namespace) -> int:
    """Run `taglio serve`."""
    try:
        from taglio.serve import log
        from taglio.serve.queue import QueueLimits
        from taglio.serve.served import opened
        from taglio.serve.server import Listen, Started
        from taglio.serve.server import serve as answer
        from taglio.serve.service import Settings
    except ImportError as error:
        raise BadOption(f"serving needs {error.name}: pip install 'taglio[serve]'") from None
    certificate, key = options.tls or (None, None)
    for path in filter(None, (certificate, key)):
        if not path.is_file():
            raise BadOption(f"--tls {path}: no such file")
    limits = QueueLimits(options.queue, options.batch)
    settings = Settings(int(options.max_request_mb * 1e6), _token(options.token_file), options.drain_s, limits)
    listen = Listen(options.host, options.http_port, options.grpc_port, certificate, key)
    cluster = cluster_file.load(options.cluster) if options.cluster is not None else None
    log.to_stderr()
    with opened(options.models, options.threads, cluster, options.kernel_cache) as models:

        def announce(started: Started) -> None:
            ways = [replace(model.way, joined=limits.rows(model)) for model in models]
            if options.json:
                described = [
                    {
                        "name": model.name,
                        "version": model.version,
                        "alone": model.alone,
                        "way": None if model.on_cluster else asdict(way),
                    }
                    for model, way in zip(models, ways, strict=True)
                ]
                emit({"http": started.http, "grpc": started.grpc, "models": described})
            else:
                for model, way in zip(models, ways, strict=True):
                    sys.stdout.write(announced(model, way) + "\n")
                sys.stdout.write(f"REST on {started.http}, gRPC on {started.grpc}; Ctrl-C ends\n")
            sys.stdout.flush()

        unanswered = answer(models, settings, listen, announce)
    if unanswered:
        sys.stderr.write(f"taglio: {plural(unanswered, 'request')} not answered within {options.drain_s:g} s\n")
    return int(unanswered > 0)


def announced(model: "ServedModel", way: Way) -> str:
    """A line that says how `model` is run: in `way`, unless the devices of a cluster answer."""
    runs = "" if model.on_cluster else f", {way}"
    alone = f"requests run alone: {model.alone}" if model.alone else "requests run alone"
    joined = "requests are batched" if way.joined > 1 else alone
    return f"{model.name} version {model.version}{runs}; {joined}"


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get(VARIABLE, "")
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"--token-file {path}: cannot be read ({error})") from None
    if not token:
        raise BadOption(f"--token-file {path}: is empty")
    return token
