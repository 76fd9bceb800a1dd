"""Parts of `make bench-fleet`: a fleet of tables, their commits, a catalog behind a delay, and the watched service."""
