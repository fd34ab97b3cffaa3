"""Clean installs: `make test-installs`."""
