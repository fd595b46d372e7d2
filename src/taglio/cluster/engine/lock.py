"""Access to a cluster: Ray's token, which is always required, and TLS. Leaves checking requests to Ray.

A token is a file with a secret shared by all devices, which only its owner may read. The head's first start creates it;
it is copied to the other devices by hand. With a folder of certificates every connection is encrypted, and both ends
present a certificate signed by the same authority.
"""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from taglio.errors import BadOption, plural

_FILES = {"RAY_TLS_SERVER_CERT": "tls.crt", "RAY_TLS_SERVER_KEY": "tls.key", "RAY_TLS_CA_CERT": "ca.crt"}


def environment(token: Path, tls: Path | None = None) -> dict[str, str]:
    """Environment variables for Ray. Raises BadOption for a missing or weak token, missing certificates, and a token or
    a certificate's key that other users can read or write."""
    try:
        text = token.read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise BadOption(
            f"{token}: no token there: copy the file from the head, where taglio cluster start --head wrote it, "
            "or give another with `token`"
        ) from None
    if len(text) < 16:
        raise BadOption(f"{token}: a token of {plural(len(text), 'character')} can be guessed: use at least 16")
    _refuse_shared(token)
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token.resolve())}
    if tls is None:
        return variables
    for name in _FILES.values():
        if not (tls / name).is_file():
            raise BadOption(f"`tls` {tls}: {name} is missing: the directory holds tls.crt, tls.key and ca.crt")
    _refuse_shared(tls / "tls.key")
    files = {variable: str((tls / name).resolve()) for variable, name in _FILES.items()}
    return {**variables, "RAY_USE_TLS": "1", **files}


def _refuse_shared(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise BadOption(
            f"{path}: other users can use this secret (mode {mode:o}, wanted 600): chmod 600 it, and make a new one if "
            "somebody may have read it"
        )


def default_token(environment: Mapping[str, str] = os.environ) -> Path:
    """The default token file, where Ray looks for it. Raises BadOption for a user without a home directory."""
    given = environment.get("RAY_AUTH_TOKEN_PATH")
    try:
        return Path(given) if given else Path.home() / ".ray" / "auth_token"
    except RuntimeError:
        raise BadOption("this user has no home directory: name a file for the token with `token`") from None


def make_token(path: Path) -> None:
    """Write a new token, readable only by its owner, unless there is one."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
