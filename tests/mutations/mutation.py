"""One way to break a rule, and the test that notices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """A small bug that could have been written.

    Attributes:
        rule: The key of a rule in `rules.py`.
        what: What is broken, in words of the rule.
        path: The file, from the project's root.
        before: Text that occurs exactly once in it.
        after: What stands there instead while the rule is broken.
        test: The test that fails then, as pytest names it, from the project's root. One parameter set is enough.
    """

    rule: str
    what: str
    path: str
    before: str
    after: str
    test: str

    @property
    def test_file(self) -> str:
        """The test's file, from the project's root."""
        return self.test.partition("::")[0]

    @property
    def test_function(self) -> str:
        """The test's name, without its parameters."""
        return self.test.partition("::")[2].partition("[")[0]

    def applied_to(self, root: Path) -> str:
        """The file's text with the rule broken.

        Raises:
            MutationError: `before` is not there exactly once.
        """
        text = (root / self.path).read_text(encoding="utf-8")
        found = text.count(self.before)
        if found != 1:
            raise MutationError(f"rule {self.rule}, {self.what!r}: found {found} times in {self.path}: {self.before!r}")
        return text.replace(self.before, self.after)


class MutationError(Exception):
    """A mutation that does not fit the code any more: it names itself, and must be written again."""
