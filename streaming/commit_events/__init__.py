"""Decoders of commit events, one wire format per file, all behind one contract."""
