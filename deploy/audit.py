"""`make audit`: known vulnerabilities of the image's Python packages, by pip-audit.

Exit code 1 if there are any. Where the vulnerability service cannot be reached, it says that nothing was audited and
ends with 0: CI must not depend on another's service; `--strict` makes that exit code 3.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LISTS = ("requirements.txt", "requirements-extras.txt", "requirements-build.txt")
VULNERABLE, NOT_AUDITED = 1, 3


@dataclass(frozen=True)
class Audit:
    """Packages that were looked up, packages that the service does not know, and what was found."""

    audited: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    vulnerable: tuple[str, ...] = ()

    def __add__(self, other: Audit) -> Audit:
        return Audit(self.audited + other.audited, self.unknown + other.unknown, self.vulnerable + other.vulnerable)


def judged(document: Any) -> Audit:
    """Of pip-audit's JSON."""
    found = document["dependencies"]
    known = [each for each in found if "skip_reason" not in each]
    return Audit(
        tuple(each["name"] for each in known),
        tuple(each["name"] for each in found if "skip_reason" in each),
        tuple(
            f"{each['name']} {each['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'none'}"
            for each in known
            for flaw in each["vulns"]
        ),
    )


def audit(list_name: str, service: str) -> Audit:
    """Ask the service; a list that cannot be looked up counts as one unknown package."""
    command = [
        str(ROOT / ".venv" / "tools" / "bin" / "pip-audit"), "-r", str(ROOT / "deploy" / "docker" / list_name),
        "--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json",
        "--vulnerability-service", service,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return judged(json.loads(done.stdout))
    except ValueError:
        return Audit(unknown=(f"all of {list_name} ({(done.stderr.strip().splitlines() or ['no answer'])[-1]})",))


def main(arguments: Sequence[str]) -> int:
    """Audit all lists; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--service", default="pypi", choices=["pypi", "osv"], help="who is asked")
    options.add_argument("--strict", action="store_true", help="exit code 3 if anything could not be audited")
    given = options.parse_args(arguments)
    found = sum((audit(name, given.service) for name in LISTS), Audit())
    for line in found.vulnerable:
        print(f"VULNERABLE  {line}")  # noqa: T201 - a command
    if found.unknown:
        print(f"NOT AUDITED  {len(found.unknown)}: {', '.join(found.unknown)}")  # noqa: T201
    print(f"audited {len(found.audited)} packages: {len(found.vulnerable)} vulnerabilities")  # noqa: T201
    if found.vulnerable:
        return VULNERABLE
    return NOT_AUDITED if found.unknown and given.strict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
