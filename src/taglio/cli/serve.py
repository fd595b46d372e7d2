"""The command serve: built models behind the Open Inference Protocol."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from taglio.cli.clusters import cluster_argument
from taglio.cli.options import WITHOUT, Some, any_port, command, json_argument, positive, positive_float, refuse_others
from taglio.errors import BadOption

VARIABLE = "TAGLIO_SERVE_TOKEN"


def add(commands: Any) -> None:
    """Add the command to the parser."""
    each = command(commands, "serve", "serve built models by the Open Inference Protocol v2 (REST and gRPC)", _serve)
    each.add_argument(
        "models",
        nargs="+",
        metavar="OUT",
        help="workspace directory, NAME=OUT, or a directory of them (NAME/ or NAME/VERSION/)",
    )
    cluster_argument(each)
    each.add_argument("--host", default="127.0.0.1", help="address to listen on; all but loopback need a token or TLS")
    each.add_argument(
        "--http-port", type=any_port, default=8000, help="REST, metrics and status page (default 8000; 0: any)"
    )
    each.add_argument("--grpc-port", type=any_port, default=8001, help="gRPC (default 8001; 0: any)")
    each.add_argument(
        "--token-file", type=Path, help=f"file with the token that clients must send (default: ${VARIABLE}, else none)"
    )
    each.add_argument("--tls", nargs=2, type=Path, metavar=("CERT", "KEY"), help="PEM files; encrypts both listeners")
    alone = Some(each, WITHOUT)
    alone.add_argument("--threads", type=positive, help="threads per session (default: the plan's)")
    each.add_argument("--queue", type=positive, default=64, help="queue length per model (default 64)")
    each.add_argument(
        "--batch",
        type=positive,
        default=8,
        help="largest batch, for models with a dynamic batch dimension (default 8)",
    )
    each.add_argument("--batch-wait-ms", type=float, default=2.0, help="longest wait for a batch to fill (default 2)")
    each.add_argument("--max-request-mb", type=positive_float, default=64.0, help="limit on request size (default 64)")
    each.add_argument(
        "--drain-s", type=positive_float, default=30.0, help="grace period for running requests at SIGTERM (default 30)"
    )
    each.add_argument(
        "--traces", default="", metavar="URL", help="send OpenTelemetry traces to this OTLP collector (default: none)"
    )
    json_argument(each)


def _serve(options: argparse.Namespace) -> int:
    refuse_others(options)
    try:
        from taglio.serve.server import Listen, Started, serve
    except ImportError as error:
        raise BadOption(f"serving needs {error.name}: pip install 'taglio[serve]'") from None
    from taglio.cli.options import emit
    from taglio.cluster import file as cluster_file
    from taglio.serve.queue import Limits
    from taglio.serve.served import opened
    from taglio.serve.service import Settings

    certificate, key = options.tls or (None, None)
    for path in filter(None, (certificate, key)):
        if not path.is_file():
            raise BadOption(f"--tls {path}: no such file")
    limits = Limits(options.queue, options.batch, options.batch_wait_ms / 1e3)
    settings = Settings(
        int(options.max_request_mb * 1e6), _token(options.token_file), options.drain_s, limits, options.traces
    )
    listen = Listen(options.host, options.http_port, options.grpc_port, certificate, key)
    cluster = cluster_file.load(options.cluster, options.scenario) if options.cluster is not None else None
    with opened(options.models, options.threads, cluster) as models:

        def told(started: Started) -> None:
            if options.json:
                names = [{"name": model.name, "version": model.version} for model in models]
                emit({"http": started.http, "grpc": started.grpc, "models": names})
            else:
                for model in models:
                    joined = ", requests are batched" if model.batches else ""
                    sys.stdout.write(f"{model.name} version {model.version}{joined}\n")
                sys.stdout.write(f"REST and status page on {started.http}, gRPC on {started.grpc}; Ctrl-C ends\n")
            sys.stdout.flush()

        left = serve(models, settings, listen, told)
    if left:
        sys.stderr.write(f"taglio: {left} requests were not answered within {options.drain_s:g} s\n")
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
