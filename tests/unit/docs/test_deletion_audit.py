"""docs/guarantees.md lists each line of code that deletes a file or an object, and what stands before it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("compactor", "metrics", "streaming")
METHODS = {
    "abort", "abort_upload", "abort_uploads", "delete", "deleteFile", "deleteFiles", "delete_dir",
    "delete_dir_contents", "delete_file", "delete_object", "delete_objects", "remove", "removedirs", "rmdir",
    "rmtree", "rm", "unlink",
}  # fmt: skip
"""Methods that delete, of every client."""
OUR_OWN = {"abort_uploads", "abort_uploads_to", "delete_files", "delete_unused_metadata"}
"""Our functions that delete, and those that others may import by name."""
BY_NAME = {"abort_multipart_upload", "delete_object", "delete_objects", "SnapshotProducer.cleanUncommitted"}
"""Operations that are passed as text."""
NO_FILES = {
    ("compactor/manifests/executor_job.py", "remove"),
    ("compactor/rewrite/tasks/spark_scan.py", "remove"),
    ("compactor/commit/updates.py", "delete_file"),
    ("compactor/whatif/simulation.py", "delete"),
    ("metrics/http/http_connections.py", "abort"),
}
"""Calls of the same name on lists, caches and connections, and a function that describes a delete file."""


def deletions(source: str) -> Counter[str]:
    """Calls that delete, by name."""
    found: Counter[str] = Counter()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in BY_NAME:
            found[node.value] += 1
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            found[node.attr] += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OUR_OWN | METHODS:
            found[node.func.id] += 1
    return found


def in_code() -> dict[tuple[str, str], int]:
    files = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]
    found = {
        (str(path.relative_to(ROOT)), name): count
        for path in files
        for name, count in deletions(path.read_text(encoding="utf-8")).items()
    }
    return {key: count for key, count in found.items() if key not in NO_FILES}


def in_audit() -> dict[tuple[str, str], int]:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    section = text.split("## Deletions\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]+) \| [^|]+ \| [^|]+ \|$", section, re.MULTILINE)
    return {
        (module, name): int(times or 1)
        for module, calls in rows
        for name, times in re.findall(r"`([\w.]+)`(?: × (\d+))?", calls)  # noqa: RUF001
    }


def test_every_deletion_is_in_the_audit() -> None:
    assert in_code() == in_audit(), "a line that deletes needs a guard, and a row under Deletions in docs/guarantees.md"


def test_a_new_deletion_would_be_found() -> None:
    for line in (
        "path.unlink()",
        "shutil.rmtree(x)",
        "os.remove(x)",
        "io.deleteFile(x)",
        "list(map(fs.delete_file, x))",
    ):
        assert deletions(line), line
    assert deletions('client.send("delete_object")') == Counter({"delete_object": 1})
    assert not deletions("del files[x]")
