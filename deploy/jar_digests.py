"""Write compactor/spark/jars.sha256: fetch every jar set anew, and print the digests of all jars.

Run it after a change of versions in compactor/spark/java.py (`make jar-digests`), on a machine and with a repository
that you trust, and read the difference: only jars whose version changed may have a new line.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from compactor.errors import GiveUpError
from compactor.spark.jar_digests import DIGESTS, UNKNOWN, digest_of
from compactor.spark.java import JAR_SETS, JarSet, jar_name, retrieve


def main() -> None:
    """Fetch, compare the sets with each other, write."""
    digests: dict[str, str] = {}
    for jar_set in JAR_SETS:
        for name, digest in digests_of(jar_set).items():
            if digests.setdefault(name, digest) != digest:
                sys.exit(f"{name} differs between two sets")
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    DIGESTS.write_text("".join(lines), encoding="utf-8")
    print(f"{DIGESTS}: {len(lines)} jars")  # noqa: T201 - a command


def digests_of(jar_set: JarSet) -> dict[str, str]:
    """Digests by file name; `unknown` for the coordinates of a set that the repository does not have."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            retrieve(jar_set, Path(scratch))
        except GiveUpError as error:
            print(f"{jar_set.name}: {error}", file=sys.stderr)  # noqa: T201 - a command
            return {jar_name(coordinate): UNKNOWN for coordinate in jar_set.coordinates}
        return {jar.name: digest_of(jar) for jar in (Path(scratch) / "jars").glob("*.jar")}


if __name__ == "__main__":
    main()
