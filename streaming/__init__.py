"""Commit events, the debt ledger, the service and the command line."""
