"""Record one forward pass: values, operators and module calls."""
