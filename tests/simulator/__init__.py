"""The service beside catalogs, writers, faults and deaths of every kind, in one process without Spark or servers."""
