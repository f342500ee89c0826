"""What a structured loss costs beside cross entropy, and beside its peers: ``python -m benchmarks [--quick]``."""
