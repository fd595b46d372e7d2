"""The command serve: built models behind the Open Inference Protocol."""

import argparse
import os
import sys
from pathlib import Path

from taglio.cli.output import emit
from taglio.cluster import file as cluster_file
from taglio.errors import BadOption, plural

VARIABLE = "TAGLIO_SERVE_TOKEN"


def serve(options: argparse.Namespace) -> int:
    """Run `taglio serve`."""
    try:
        from taglio.serve import log
        from taglio.serve.queue import Limits
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
    limits = Limits(options.queue, options.batch, options.batch_wait_ms)
    settings = Settings(
        int(options.max_request_mb * 1e6), _token(options.token_file), options.drain_s, limits, options.traces
    )
    listen = Listen(options.host, options.http_port, options.grpc_port, certificate, key)
    cluster = cluster_file.load(options.cluster, options.scenario) if options.cluster is not None else None
    log.to_stderr()
    with opened(options.models, options.threads, cluster, options.kernel_cache) as models:

        def announce(started: Started) -> None:
            if options.json:
                names = [{"name": model.name, "version": model.version, "alone": model.alone} for model in models]
                emit({"http": started.http, "grpc": started.grpc, "models": names})
            else:
                for model in models:
                    joined = f"requests run alone: {model.alone}" if model.alone else "requests are batched"
                    sys.stdout.write(f"{model.name} version {model.version}, {joined}\n")
                sys.stdout.write(f"REST and status page on {started.http}, gRPC on {started.grpc}; Ctrl-C ends\n")
            sys.stdout.flush()

        left = answer(models, settings, listen, announce)
    if left:
        sys.stderr.write(f"taglio: {plural(left, 'request')} not answered within {options.drain_s:g} s\n")
    return int(left > 0)


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
