"""Parts of `make test-writers`: real writers beside the service, each with a journal; how soon each commit is heard."""
