"""Every rule that a rewrite must keep, broken on purpose: a test has to notice. See `__main__` and docs/rules.md."""
