"""Random interleavings of a rewrite with other writers, against one table and a serial model."""
