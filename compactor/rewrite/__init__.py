"""Rewrite data files: the engines `splice`, `encode` and `spark`, and all they need to write a correct file."""
