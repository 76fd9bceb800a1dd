"""The metrics room: turns the compactor's typed events and the debt board into Prometheus metrics and HTTP pages."""
