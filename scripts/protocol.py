"""Write serve/open_inference.binpb, the compiled form of open_inference.proto that taglio loads. Needs grpcio-tools.

python scripts/protocol.py [--check]
"""

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parents[1] / "src" / "taglio" / "serve"
COMPILED = FOLDER / "open_inference.binpb"


def compiled() -> bytes:
    """The file's descriptor, serialised."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        code = protoc.main(["protoc", f"-I{FOLDER}", f"--descriptor_set_out={out}", "open_inference.proto"])
        if code:
            raise SystemExit(code)
        return out.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the compiled file is not of the .proto")
    options = parser.parse_args()
    made = compiled()
    if options.check:
        stale = COMPILED.read_bytes() != made
        print(f"{COMPILED.name} is {'stale: run python scripts/protocol.py' if stale else 'current'}")
        return int(stale)
    COMPILED.write_bytes(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
