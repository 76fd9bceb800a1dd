"""The correctness matrix: real tables by real writers, every engine, compared row by row with Spark's read.

`python -m tests.correctness --help` tells how to run it; `checks.check_compaction` is what other suites use.
"""
