"""Runs that commit, stop, die and are swept beside a catalog that delays, repeats and reorders requests and answers."""
