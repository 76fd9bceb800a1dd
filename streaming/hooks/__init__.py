"""Refresh hooks, one kind per file."""
