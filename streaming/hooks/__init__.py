"""Refresh hooks: one way of telling others of a commit a file."""
