"""The demo: the service beside a writer, on an embedded broker, catalog and warehouse. `make demo`."""
