"""The recorded pass as a graph of operators and values."""
