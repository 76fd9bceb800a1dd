"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("firnline")
except PackageNotFoundError:  # a source tree that is not installed
    VERSION = "0.0.0"
