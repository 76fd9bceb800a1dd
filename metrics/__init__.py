"""Prometheus metrics and HTTP pages, from typed events and the debt board."""
