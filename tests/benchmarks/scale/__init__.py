"""What a service costs on a lake larger than this machine: unit costs measured here, and a model that uses them."""
