"""Known vulnerabilities of what is installed, by pip-audit, where that is installed and reaches its index."""

import importlib.util
import json
import subprocess
import sys

# Vulnerabilities that do not concern taglio, by their id, with the reason.
EXPLAINED: dict[str, str] = {}
PATIENCE_S = 120.0


def main() -> int:
    """Print what was found; 1 where it is not explained, 0 also where nothing could be asked."""
    if importlib.util.find_spec("pip_audit") is None:
        print("audit: skipped: pip install pip-audit")
        return 0
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner=off", "-f", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        packages = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        print("audit: skipped: the index of vulnerabilities does not answer")
        return 0
    found = [(each["name"], each.get("version", ""), one["id"]) for each in packages for one in each.get("vulns", [])]
    unexplained = [each for each in found if each[2] not in EXPLAINED]
    for name, version, number in unexplained:
        print(f"audit: {name} {version} has {number}: update it, or explain in scripts/audit.py why it does not matter")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
