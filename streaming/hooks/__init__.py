"""Refresh hooks: ways of notifying others of a commit."""
