"""A token is always asked for; certificates are all there or refused."""

import os
from pathlib import Path

import pytest

from taglio.cluster.engine.lock import default_token, environment, make_token
from taglio.errors import BadOption


def test_a_missing_or_weak_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="copy the file from the head"):
        environment(tmp_path / "none")
    (tmp_path / "weak").write_text("secret")
    with pytest.raises(BadOption, match="6 characters can be guessed"):
        environment(tmp_path / "weak")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with pytest.raises(BadOption, match="copy the file from the head"):
        environment(tmp_path / "binary")


def test_a_user_without_a_home_names_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    with pytest.raises(BadOption, match="no home directory: name a file for the token with `token`"):
        default_token({})


def test_certificates_are_all_there_or_refused(tmp_path: Path) -> None:
    make_token(tmp_path / "token")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("x")
    with pytest.raises(BadOption, match=r"ca\.crt is missing"):
        environment(tmp_path / "token", tmp_path)
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "tls.key").chmod(0o644)
    with pytest.raises(BadOption, match="mode 644, wanted 600"):
        environment(tmp_path / "token", tmp_path)
    (tmp_path / "tls.key").chmod(0o600)
    assert environment(tmp_path / "token", tmp_path)["RAY_TLS_CA_CERT"] == str(tmp_path / "ca.crt")
