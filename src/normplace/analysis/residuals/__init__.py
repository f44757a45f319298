"""Find residual adds by dataflow."""
