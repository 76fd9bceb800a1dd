"""The streaming room: commit events in, the debt ledger, the service's life and the command line."""
