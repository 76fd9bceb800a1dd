"""Decoders of commit events, one wire format per file, with one interface."""
