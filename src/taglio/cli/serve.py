"""The command serve: built models behind the Open Inference Protocol."""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from taglio.cli.output import emit
from taglio.cluster import file as cluster_file
from taglio.errors import BadOption, plural

if TYPE_CHECKING:  # needs taglio[serve]
    from taglio.serve.served import ServedModel

VARIABLE = "TAGLIO_SERVE_TOKEN"


def serve(options: argparse.Namespace) -> int:
    """Run `taglio serve`."""
    try:
        from taglio.serve import log
        from taglio.serve.served import opened
        from taglio.serve.server import Listen
        from taglio.serve.server import serve as answer
        from taglio.serve.service import Settings
    except ImportError as error:
        raise BadOption(f"serving needs {error.name}: pip install 'taglio[serve]'") from None
    for path in options.tls or ():
        if not path.is_file():
            raise BadOption(f"--tls {path}: no such file")
    settings = Settings(int(options.max_request_mb * 1e6), _token(options.token_file), options.drain_s, options.queue)
    listen = Listen(options.host, options.http_port, options.grpc_port, options.tls)
    cluster = cluster_file.load(options.cluster) if options.cluster is not None else None
    log.to_stderr()
    with opened(options.models, options.threads, options.batch, cluster, options.kernel_cache) as models:

        def announce(http: str, grpc: str) -> None:
            if options.json:
                described = [
                    {
                        "name": model.name,
                        "version": model.version,
                        "alone": model.alone,
                        "way": None if model.on_cluster else asdict(model.way),
                    }
                    for model in models
                ]
                emit({"http": http, "grpc": grpc, "models": described})
            else:
                for model in models:
                    sys.stdout.write(announced(model) + "\n")
                sys.stdout.write(f"REST on {http}, gRPC on {grpc}; Ctrl-C ends\n")
            sys.stdout.flush()

        unanswered = answer(models, settings, listen, announce)
    if unanswered:
        sys.stderr.write(f"taglio: {plural(unanswered, 'request')} not answered within {options.drain_s:g} s\n")
    return int(unanswered > 0)


def announced(model: "ServedModel") -> str:
    """A line that says how `model` is run: in its way, unless the devices of a cluster answer."""
    runs = "" if model.on_cluster else f", {model.way}"
    alone = f"requests run alone: {model.alone}" if model.alone else "requests run alone"
    joined = "requests are joined" if model.way.joined > 1 else alone
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
